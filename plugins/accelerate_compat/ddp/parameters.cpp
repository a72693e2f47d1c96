// Allocates memory for the leaves of the model, and binds them to it.
//
// The host's leaves arrive without memory. They are bound by replacing the pointer in their
// storage, not by Tensor::set_data: tensors that autograd has saved share the storage and must
// refer to the same memory.
#include "plugins/accelerate_compat/ddp/parameters.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

namespace yoke::accelerate_compat {
namespace {

constexpr int64_t kInitElements = 1 << 20;  // fp32 elements of a staging buffer for initial values

const TorchModel* require_torch_model(const YokeModel& model) {
  if (const TorchModel* torch = torch_model(model)) return torch;
  throw Error(YOKE_FAILED_PRECONDITION,
              std::string("accelerate_compat was built with ") + kTorchTag +
                  " and needs the model as LibTorch objects, which the host attaches only if its "
                  "own LibTorch is the same; build both with the same one");
}

// Points the storage of a leaf to memory that the caller owns, or to none if data is NULL.
void bind(const at::Tensor& leaf, void* data) {
  c10::StorageImpl* const storage = leaf.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(data, leaf.device()));
  storage->set_nbytes(data == nullptr ? size_t{0}
                                      : static_cast<size_t>(leaf.numel() * leaf.itemsize()));
}

// Fills a flat tensor with the initial values of a parameter, which the model computes on the CPU.
void initialise(const YokeModel& model, int64_t param, const at::Tensor& flat) {
  const at::Tensor values = at::empty({std::min(flat.numel(), kInitElements)}, at::kFloat);
  for (int64_t done = 0; done < flat.numel(); done += values.numel()) {
    const int64_t n = std::min(values.numel(), flat.numel() - done);
    call([&](YokeError* err) {
      return model.init_param(model.ctx, param, done, n, values.data_ptr<float>(), err);
    });
    flat.narrow(0, done, n).copy_(values.narrow(0, 0, n));
  }
}

}  // namespace

Parameters::Parameters(const YokeModel& model, at::ScalarType compute)
    : model_(require_torch_model(model)) {
  const at::ScalarType wide = c10::elementSize(compute) == 2 ? at::kFloat : compute;
  for (uint64_t p = 0; p < model.summary->num_params; ++p) {
    const at::Tensor& leaf = (*model_->params)[p];
    const at::Tensor memory = at::empty(leaf.sizes(), leaf.options().dtype(compute));
    const at::Tensor master = wide == compute ? memory : at::empty_like(memory, wide);
    initialise(model, static_cast<int64_t>(p), master.view({-1}));
    bind(leaf, memory.data_ptr());
    all_.push_back({model.summary->params[p], leaf, memory, master});
  }
  publish();
}

Parameters::~Parameters() {
  for (const Parameter& p : all_) {
    p.leaf.mutable_grad().reset();
    bind(p.leaf, nullptr);
  }
}

void Parameters::publish() const {
  for (const Parameter& p : all_) {
    if (!p.master.is_same(p.memory)) p.memory.copy_(p.master);
  }
}

int64_t Parameters::bytes() const {
  int64_t bytes = 0;
  for (const Parameter& p : all_) {
    bytes += static_cast<int64_t>(p.memory.nbytes());
    if (!p.master.is_same(p.memory)) bytes += static_cast<int64_t>(p.master.nbytes());
  }
  return bytes;
}

}  // namespace yoke::accelerate_compat
