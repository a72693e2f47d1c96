// Whether tensors are neighbours is decided by their addresses, since each parameter of a backend
// may be a tensor of its own on a common buffer. Parameters that a backend allocates one by one may
// become neighbours by chance. Their products are then as right, but rounded differently.
#include "core/kernels/neighbours.hpp"

#include <ATen/ATen.h>

namespace yoke::ops {
namespace {

// Returns a tensor at the address of `first`, which does not own the memory.
at::Tensor at_memory_of(const at::Tensor& first,
                        const std::vector<int64_t>& sizes,
                        const std::vector<int64_t>& strides) {
  return at::for_blob(first.data_ptr(), sizes)
      .strides(strides)
      .options(first.options())
      .target_device(first.device())
      .make_tensor();
}

// Returns whether t begins so many elements after `first` does.
bool begins_at(const at::Tensor& t, const at::Tensor& first, int64_t elements) {
  return static_cast<const char*>(t.const_data_ptr()) ==
         static_cast<const char*>(first.const_data_ptr()) + elements * first.element_size();
}

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && a.dim() == b.dim();
}

int64_t sum_of_sizes(at::TensorList tensors, int64_t dim) {
  int64_t sum = 0;
  for (const at::Tensor& t : tensors) sum += t.size(dim);
  return sum;
}

}  // namespace

bool has_regular_rows(const at::Tensor& t, int64_t columns) {
  bool regular = t.dim() >= 2 && t.stride(-1) == 1 && t.stride(-2) >= columns;
  for (int64_t i = 0; i + 2 < t.dim(); ++i)
    regular = regular && t.stride(i) == t.size(i + 1) * t.stride(i + 1);
  return regular;
}

bool are_stacked(at::TensorList matrices) {
  const at::Tensor& first = matrices[0];
  int64_t rows = 0;
  for (const at::Tensor& m : matrices) {
    if (!are_alike(m, first) || m.dim() != 2 || m.numel() == 0 || !m.is_contiguous() ||
        m.size(1) != first.size(1) || !begins_at(m, first, rows * first.size(1)))
      return false;
    rows += m.size(0);
  }
  return true;
}

at::Tensor stacked(at::TensorList matrices) {
  const at::Tensor& first = matrices[0];
  if (matrices.size() == 1) return first;
  return at_memory_of(first, {sum_of_sizes(matrices, 0), first.size(1)}, {first.size(1), 1});
}

bool are_side_by_side(at::TensorList tensors) {
  const at::Tensor& first = tensors[0];
  int64_t columns = 0;
  for (const at::Tensor& t : tensors) {
    if (!are_alike(t, first) || t.dim() < 2 || t.numel() == 0 || !begins_at(t, first, columns) ||
        t.sizes().slice(0, t.dim() - 1) != first.sizes().slice(0, t.dim() - 1) ||
        t.strides() != first.strides())
      return false;
    columns += t.size(-1);
  }
  return has_regular_rows(first, columns);
}

at::Tensor side_by_side(at::TensorList tensors) {
  const at::Tensor& first = tensors[0];
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.back() = sum_of_sizes(tensors, -1);
  return at_memory_of(first, sizes, first.strides().vec());
}

std::vector<at::Tensor> empty_side_by_side(at::IntArrayRef sizes,
                                           at::IntArrayRef columns,
                                           const at::TensorOptions& options) {
  std::vector<int64_t> all = sizes.vec();
  all.push_back(0);
  for (const int64_t c : columns) all.back() += c;
  return parts_of(at::empty(all, options), columns);
}

std::vector<at::Tensor> parts_of(const at::Tensor& all, at::IntArrayRef columns) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t c : columns) {
    parts.push_back(all.narrow(-1, begin, c));
    begin += c;
  }
  return parts;
}

}  // namespace yoke::ops
