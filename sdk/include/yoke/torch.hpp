// The only include of the sdk that needs LibTorch: tensors without a copy, and the model as
// LibTorch sees it (extension YOKE_ID_TORCH_MODEL, chained on YokeModel.header.next).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/dlpack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/AutogradState.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace torch::nn {
class Module;
}

namespace yoke {

// Two sides may exchange LibTorch objects only if their tags are equal.
#define YOKE_STRINGIFY_(x) #x
#define YOKE_STRINGIFY(x) YOKE_STRINGIFY_(x)
inline constexpr const char* kTorchTag =
    "torch-" TORCH_VERSION
    "-cxx11abi" YOKE_STRINGIFY(_GLIBCXX_USE_CXX11_ABI) "-g++" YOKE_STRINGIFY(__GNUC__);

// What a block gets besides the carry: the inputs of the micro-batch by role.
using TorchInputs = std::vector<std::pair<std::string, at::Tensor>>;

inline const at::Tensor& input(const TorchInputs& inputs, std::string_view role) {
  for (const auto& [name, tensor] : inputs) {
    if (name == role) return tensor;
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "the batch has no input with the role '" + std::string(role) + "'");
}

// A unit of the model in execution order. forward takes the carry of the block before (undefined
// for the first) and returns its own; the last block returns the loss summed over its targets, a
// scalar.
struct TorchBlock {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor& carry, const TorchInputs& inputs)> forward;
};

// The model as LibTorch objects. Filled by the host, lives as long as the YokeModel it is chained
// on.
struct TorchModel {
  YokeHeader header;
  const std::vector<TorchBlock>* blocks;  // as many as summary->num_blocks
  const std::vector<at::Tensor>* params;  // leaves, by parameter index; without memory until bound
  std::function<double(const TorchInputs& inputs)>
      loss_weight;  // number of targets in a micro-batch
};

inline const TorchModel* torch_model(const YokeModel& model) {
  for (const YokeHeader* h = model.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == YOKE_ID_TORCH_MODEL) return reinterpret_cast<const TorchModel*>(h);
  }
  return nullptr;
}

// Work on the current stream of a device, recorded once and then repeated as a whole, on the same
// memory. One thread, the same for all calls.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;  // gives up a recording under way
  // Until end(), what this thread issues on the stream is recorded and not done. Nothing may wait
  // for the device meanwhile.
  virtual void begin() = 0;
  virtual void end() = 0;
  virtual void replay() = 0;  // returns before the work is done
};

// "yoke.torch_graphs/1", a service of hosts on a device that can record; for backends with the
// host's tag.
struct TorchGraphs {
  YokeHeader header;  // of any id
  void* ctx;
  std::unique_ptr<DeviceGraph> (*make)(void* ctx);  // throws std::exception
  // Nobody watches the collectives of a repetition: one that takes this much longer than the work
  // takes has lost a peer.
  double patience_seconds;
};

static_assert(DLPACK_MAJOR_VERSION == 1 && sizeof(DLTensor) == sizeof(YokeTensor) &&
              sizeof(DLManagedTensorVersioned) == sizeof(YokeManagedTensor) &&
              offsetof(DLTensor, byte_offset) == offsetof(YokeTensor, byte_offset));

inline at::ScalarType scalar_type(int32_t dtype) {
  switch (dtype) {
    case YOKE_F64:
      return at::kDouble;
    case YOKE_F32:
      return at::kFloat;
    case YOKE_BF16:
      return at::kBFloat16;
    case YOKE_F16:
      return at::kHalf;
    case YOKE_I64:
      return at::kLong;
    case YOKE_I32:
      return at::kInt;
    case YOKE_U8:
      return at::kByte;
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  "dtype " + std::to_string(dtype) + " is not one of YOKE_F64 ... YOKE_U8");
  }
}

inline int32_t dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return YOKE_F64;
    case at::kFloat:
      return YOKE_F32;
    case at::kBFloat16:
      return YOKE_BF16;
    case at::kHalf:
      return YOKE_F16;
    case at::kLong:
      return YOKE_I64;
    case at::kInt:
      return YOKE_I32;
    case at::kByte:
      return YOKE_U8;
    default:
      throw Error(YOKE_INVALID_ARGUMENT,
                  std::string("no contract dtype for ") + c10::toString(type));
  }
}

// An at::Tensor over the same memory; valid as long as t's memory is.
inline at::Tensor borrow(const YokeTensor& t) {
  const auto device = t.device.type == YOKE_DEVICE_CUDA
                          ? at::Device(at::kCUDA, static_cast<int8_t>(t.device.id))
                          : at::Device(at::kCPU);
  const auto options =
      at::TensorOptions().dtype(scalar_type(YOKE_DTYPE_OF(t.dtype))).device(device);
  // The device is said twice, so that LibTorch does not ask the driver whose memory it is.
  at::TensorMaker maker = at::for_blob(data<void>(t), at::IntArrayRef(t.shape, t.ndim));
  if (t.strides != nullptr) maker.strides(at::IntArrayRef(t.strides, t.ndim));
  return maker.options(options).target_device(device).make_tensor();
}

// The inputs of a micro-batch, over the same memory.
inline TorchInputs borrow(const YokeMicroBatch& micro) {
  TorchInputs inputs;
  inputs.reserve(micro.num_inputs);
  for (uint64_t i = 0; i < micro.num_inputs; ++i)
    inputs.emplace_back(view(micro.inputs[i].role), borrow(micro.inputs[i].tensor));
  return inputs;
}

// During a step: with or without a graph, and backward on this thread, also where ranks are threads
// of one process and would otherwise share the engine's one thread per device.
class StepGuard {
 public:
  explicit StepGuard(bool with_graph) : state_(c10::AutogradState::get_tls_state()) {
    auto& now = c10::AutogradState::get_tls_state();
    now.set_grad_mode(with_graph);
    now.set_multithreading_enabled(false);
  }
  ~StepGuard() { c10::AutogradState::set_tls_state(state_); }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

 private:
  c10::AutogradState state_;
};

inline YokeDevice device_of(const at::Tensor& t) {
  return {t.is_cuda() ? YOKE_DEVICE_CUDA : YOKE_DEVICE_CPU, t.is_cuda() ? t.device().index() : 0};
}

// A contract tensor over t; holds t, so it lives as long as this object.
class TensorView {
 public:
  explicit TensorView(at::Tensor t) : owner_(std::move(t)) {
    tensor_.data = owner_.data_ptr();
    tensor_.device = yoke::device_of(owner_);  // at::device_of exists too
    tensor_.ndim = static_cast<int32_t>(owner_.dim());
    tensor_.dtype = data_type(dtype_of(owner_.scalar_type()));
    tensor_.shape = const_cast<int64_t*>(owner_.sizes().data());
    tensor_.strides = const_cast<int64_t*>(owner_.strides().data());
  }
  const YokeTensor* get() const { return &tensor_; }

 private:
  at::Tensor owner_;
  YokeTensor tensor_{};
};

// Hands t over to the other side, which calls the deleter.
inline YokeManagedTensor* to_managed(at::Tensor t) {
  struct Owner {
    explicit Owner(at::Tensor tensor) : view(std::move(tensor)) {}
    YokeManagedTensor managed{};
    TensorView view;
  };
  auto* owner = new Owner(std::move(t));
  owner->managed.dlpack_major = 1;
  owner->managed.manager_ctx = owner;
  owner->managed.deleter = [](YokeManagedTensor* self) {
    delete static_cast<Owner*>(self->manager_ctx);
  };
  owner->managed.tensor = *owner->view.get();
  return &owner->managed;
}

}  // namespace yoke
