// Whether tensors are neighbours is decided by their addresses, since each parameter of a backend
// may be a tensor of its own on a common buffer. The check costs less than a launch.
#include "core/kernels/neighbours.hpp"

#include <ATen/ATen.h>

namespace yoke::ops {
namespace {

// Returns the tensor at the memory of `first`.
at::Tensor at_memory_of(const at::Tensor& first,
                        const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides) {
  return at::for_blob(first.data_ptr(), sizes)
      .strides(strides)
      .options(first.options())
      .target_device(first.device())
      .make_tensor();
}

bool begins_at(const at::Tensor& t, const at::Tensor& before, int64_t elements) {
  return static_cast<const char*>(t.const_data_ptr()) ==
         static_cast<const char*>(before.const_data_ptr()) + elements * before.element_size();
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.dim() == b.dim();
}

}  // namespace

bool has_regular_rows(const at::Tensor& t, int64_t columns) {
  bool regular = t.dim() >= 2 && t.stride(-1) == 1 && t.stride(-2) >= columns;
  for (int64_t i = 0; i + 2 < t.dim(); ++i)
    regular = regular && t.stride(i) == t.size(i + 1) * t.stride(i + 1);
  return regular;
}

at::Tensor stacked(at::TensorList matrices) {
  const at::Tensor& first = matrices[0];
  int64_t rows = 0;
  for (const at::Tensor& m : matrices) {
    if (!are_alike(m, first) || m.dim() != 2 || !m.is_contiguous() || m.size(1) != first.size(1) ||
        !begins_at(m, first, rows * first.size(1)))
      return {};
    rows += m.size(0);
  }
  if (matrices.size() == 1) return first;
  return at_memory_of(first, {rows, first.size(1)}, {first.size(1), 1});
}

at::Tensor side_by_side(at::TensorList tensors) {
  const at::Tensor& first = tensors[0];
  int64_t columns = 0;
  for (const at::Tensor& t : tensors) {
    if (!are_alike(t, first) || t.dim() < 2 || !begins_at(t, first, columns) ||
        t.sizes().slice(0, t.dim() - 1) != first.sizes().slice(0, t.dim() - 1) ||
        t.strides() != first.strides())
      return {};
    columns += t.size(-1);
  }
  if (!has_regular_rows(first, columns)) return {};
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.back() = columns;
  return at_memory_of(first, sizes, first.strides().vec());
}

std::vector<at::Tensor> empty_side_by_side(at::TensorList tensors) {
  std::vector<int64_t> sizes = tensors[0].sizes().vec();
  sizes.back() = 0;
  for (const at::Tensor& t : tensors) sizes.back() += t.size(-1);
  const at::Tensor all = at::empty(sizes, tensors[0].options());
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const at::Tensor& t : tensors) {
    parts.push_back(all.narrow(-1, begin, t.size(-1)));
    begin += t.size(-1);
  }
  return parts;
}

}  // namespace yoke::ops
