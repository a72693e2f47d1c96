// LibTorch and the contract: conversion of tensors without a copy, and the model as LibTorch
// objects. This header and yoke/torch_device.hpp are the only ones of the sdk for backends that
// need LibTorch.
//
// A host that was built with the same LibTorch links a TorchModel into YokeModel.header.next. A
// backend that declares the same tag (kTorchTag) then runs the blocks directly as torch::nn
// modules:
//
//   const yoke::TorchModel* torch = yoke::torch_model(model);       // in wrap_model; may be NULL
//   yoke::StepGuard guard(training);                                // in step
//   const yoke::TorchInputs inputs = yoke::borrow(*batch.micros[m]);
//   at::Tensor carry;
//   for (const yoke::TorchBlock& block : *torch->blocks) carry = block.forward(carry, inputs);
//
// The backward leaves the gradients in the leaf tensors:
//
//   torch::autograd::backward({carry / batch.token_weight}, {});
//   at::Tensor& gradient = (*torch->params)[p].mutable_grad();
//
// sdk/examples/torch_replicas.cpp is a complete backend. Functions are not collective. Unless a
// comment says otherwise, they may be called from any thread, and tensors borrow their memory.
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
#include "yoke/text.hpp"

namespace torch::nn {
class Module;
}

namespace yoke {

// ---- The tag ----

// The version of LibTorch and of the C++ ABI that this file is compiled with. Host and backend may
// exchange LibTorch objects only if their tags are equal, because LibTorch's classes change from
// version to version.
#define YOKE_STRINGIFY_(x) #x
#define YOKE_STRINGIFY(x) YOKE_STRINGIFY_(x)
inline constexpr const char* kTorchTag =
    "torch-" TORCH_VERSION
    "-cxx11abi" YOKE_STRINGIFY(_GLIBCXX_USE_CXX11_ABI) "-g++" YOKE_STRINGIFY(__GNUC__);

// ---- The model ----

// The inputs of a micro-batch by role, such as "tokens": what a block receives besides the carry.
// Each tensor is [sequences, ...]. Use yoke::input to find one.
using TorchInputs = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the input with a role. Throws Error(INVALID_ARGUMENT) if there is none.
inline const at::Tensor& input(const TorchInputs& inputs, std::string_view role) {
  for (const auto& [name, tensor] : inputs) {
    if (name == role) return tensor;
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              "the batch has no input with the role '" + std::string(role) + "'");
}

// A block of the model: the smallest part that is executed on its own, such as one layer.
//
// forward takes the output of the previous block, or an undefined tensor for the first block, and
// returns the output of this block. The last block returns a scalar, the loss summed over its
// targets. forward must not keep state from one call to the next.
struct TorchBlock {
  // Unique in the model; messages and profiles use it.
  std::string name;
  // The module that owns the parameters, whose values a backend binds. Call it only through
  // forward.
  std::shared_ptr<torch::nn::Module> module;
  // See above. Records a graph for autograd if the grad mode of the thread is on.
  std::function<at::Tensor(const at::Tensor& carry, const TorchInputs& inputs)> forward;
};

// Gradients of weights that a backward has left for later. Nothing waits for them but the update,
// so a pipeline computes them when it would otherwise be idle. Used by one thread at a time.
class WeightQueue {
 public:
  // Called by the host's operators. product: returns the gradient of `weight`, or an undefined
  // tensor if it has added the gradient to GradientSums. It keeps alive what it needs for that.
  void push(at::Tensor weight, std::function<at::Tensor()> product) {
    items_.emplace_back(std::move(weight), std::move(product));
  }
  bool empty() const { return items_.empty(); }
  // Computes the gradients in the order of push(), adds each to the .grad of its weight, and
  // empties the queue.
  void run() {
    for (auto& [weight, product] : std::exchange(items_, {})) {
      at::Tensor grad = product();
      product = nullptr;  // frees what only this product needs
      if (!grad.defined()) continue;
      at::Tensor& sum = weight.mutable_grad();
      sum = sum.defined() ? sum.add(grad) : std::move(grad);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, std::function<at::Tensor()>>> items_;
};

// The sums of gradients that a backend keeps, e.g. in one buffer for all parameters. If the host's
// operators know them, they add a gradient directly to its sum, where .grad would be another tensor
// that the backend then has to read. Used by one thread at a time.
class GradientSums {
 public:
  struct Sum {
    at::Tensor values;     // the shape of the weight, contiguous, of any floating-point type
    bool written = false;  // values holds a sum; false: its elements are unspecified

    // The first gradient overwrites the values, so they need not be zeroed beforehand.
    void add(const at::Tensor& gradient) {
      written ? values.add_(gradient) : values.copy_(gradient);
      written = true;
    }
  };
  virtual ~GradientSums() = default;
  // Returns the sum of the gradients of a parameter, or nullptr if they are to be left in .grad.
  // Both must be alive until the end of the backward that asks.
  virtual Sum* of(const at::Tensor& weight) = 0;
};

// The model as LibTorch objects, an extension of YokeModel. Filled in by the host; lives as long as
// the YokeModel that it extends.
struct TorchModel {
  YokeHeader header;  // id YOKE_ID_TORCH_MODEL
  // The blocks in execution order, summary->num_blocks of them.
  const std::vector<TorchBlock>* blocks;
  // The parameters by their index in the summary: leaves of autograd, without memory until bound.
  const std::vector<at::Tensor>* params;
  // Returns the number of targets in a micro-batch.
  std::function<double(const TorchInputs& inputs)> loss_weight;
  // Makes backwards on this thread leave the gradients of weights in `queue`, until the next call;
  // nullptr = compute them at once. Returns the queue of the call before. Operators that do not
  // know the queue, such as those of a user's torch::nn modules, compute all gradients at once. Use
  // defer_weights_of(): the field was appended, and may be nullptr.
  WeightQueue* (*defer_weights)(WeightQueue* queue);
  // Makes backwards on this thread add the gradients of weights to `sums`, until the next call;
  // nullptr = leave them in .grad. Returns the sums of the call before. An operator that does not
  // know the sums still uses .grad, so a backend must look there, too. The products of a
  // WeightQueue use the sums that are set when the queue runs. Use add_gradients_to_of(): the field
  // was appended, and may be nullptr.
  GradientSums* (*add_gradients_to)(GradientSums* sums);
};
using DeferWeights = decltype(TorchModel::defer_weights);
using AddGradientsTo = decltype(TorchModel::add_gradients_to);

namespace detail {
// Returns a field of a model; nullptr if the host's struct ends before it.
template <class Field>
Field appended(const TorchModel& model, const Field& field) {
  const auto end = reinterpret_cast<uintptr_t>(&field + 1) - reinterpret_cast<uintptr_t>(&model);
  return model.header.struct_size >= end ? field : nullptr;
}
}  // namespace detail

// Return these fields of a model; nullptr if its host does not have them.
inline DeferWeights defer_weights_of(const TorchModel& model) {
  return detail::appended(model, model.defer_weights);
}
inline AddGradientsTo add_gradients_to_of(const TorchModel& model) {
  return detail::appended(model, model.add_gradients_to);
}

// Passes `value` to the host with defer_weights or add_gradients_to, and restores what was set
// before at the end of the scope. set: such a function, or nullptr for no effect.
template <class T>
class HostSetting {
 public:
  HostSetting(T* (*set)(T*), T* value) : set_(set) {
    if (set_ != nullptr) before_ = set_(value);
  }
  ~HostSetting() {
    if (set_ != nullptr) set_(before_);
  }
  HostSetting(const HostSetting&) = delete;
  HostSetting& operator=(const HostSetting&) = delete;

 private:
  T* (*set_)(T*);
  T* before_ = nullptr;
};

// Returns the model as LibTorch objects, or NULL if the tags of host and backend differ.
inline const TorchModel* torch_model(const YokeModel& model) {
  // Other extensions in the chain are skipped, as the contract requires.
  for (const YokeHeader* h = model.header.next; h != nullptr; h = h->next) {
    if (h->struct_id == YOKE_ID_TORCH_MODEL) return reinterpret_cast<const TorchModel*>(h);
  }
  return nullptr;
}

// ---- Dtypes and tensors ----

// YokeTensor and DLTensor are the same struct under two names.
static_assert(DLPACK_MAJOR_VERSION == 1 && sizeof(DLTensor) == sizeof(YokeTensor) &&
              sizeof(DLManagedTensorVersioned) == sizeof(YokeManagedTensor) &&
              offsetof(DLTensor, byte_offset) == offsetof(YokeTensor, byte_offset));

// Returns LibTorch's type for a dtype of the contract. Throws Error(INVALID_ARGUMENT) for an
// unknown one.
inline at::ScalarType scalar_type(int32_t dtype) {
  // Every dtype of the contract has an equivalent in LibTorch; the reverse is not true.
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
      throw Error(
          YOKE_INVALID_ARGUMENT,
          concat("the dtype number ", dtype, " is unknown; allowed: those of fp64, fp32, ") +
              "bf16, fp16, int64, int32 and uint8 (YOKE_F64 to YOKE_U8)");
  }
}

// Returns the contract's dtype for a type of LibTorch. Throws Error(INVALID_ARGUMENT) if it has
// none.
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

// Returns an at::Tensor over the memory of t, without a copy. It is valid for as long as that
// memory is.
inline at::Tensor borrow(const YokeTensor& t) {
  const auto device = t.device.type == YOKE_DEVICE_CUDA
                          ? at::Device(at::kCUDA, static_cast<int8_t>(t.device.id))
                          : at::Device(at::kCPU);
  const auto options =
      at::TensorOptions().dtype(scalar_type(YOKE_DTYPE_OF(t.dtype))).device(device);
  // The device is passed twice: without target_device, LibTorch queries the driver for the device
  // of the memory. There is no deleter, because the tensor borrows. Without strides it is compact.
  at::TensorMaker maker = at::for_blob(data<void>(t), at::IntArrayRef(t.shape, t.ndim));
  if (t.strides != nullptr) maker.strides(at::IntArrayRef(t.strides, t.ndim));
  return maker.options(options).target_device(device).make_tensor();
}

// Returns the inputs of a micro-batch, in the same order, as tensors over the same memory. They are
// valid for as long as the batch is.
inline TorchInputs borrow(const YokeMicroBatch& micro) {
  TorchInputs inputs;
  inputs.reserve(micro.num_inputs);
  for (uint64_t i = 0; i < micro.num_inputs; ++i)
    inputs.emplace_back(view(micro.inputs[i].role), borrow(micro.inputs[i].tensor));
  return inputs;
}

// ---- Autograd ----

// Sets autograd up for one step on this thread, and restores its state at the end of the scope.
//
// with_graph: whether forwards record a graph for a backward. The backward is made to run on the
// calling thread. Ranks may be threads of one process, and would otherwise all use the autograd
// engine's single thread per device.
class StepGuard {
 public:
  // Affects the calling thread only; destroy the guard on the same thread.
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

// Returns the contract's device of a tensor: CUDA, or the CPU for all else.
inline YokeDevice device_of(const at::Tensor& t) {
  return {t.is_cuda() ? YOKE_DEVICE_CUDA : YOKE_DEVICE_CPU, t.is_cuda() ? t.device().index() : 0};
}

// ---- From LibTorch to the contract ----

// A tensor of the contract over the memory of an at::Tensor. Holds the at::Tensor, so the memory
// lives as long as this object, which must outlive every use of get(). Strided tensors keep their
// strides.
class TensorView {
 public:
  // Takes a reference to t, not a copy of its elements.
  explicit TensorView(at::Tensor t) : owner_(std::move(t)) {
    tensor_.data = owner_.data_ptr();
    // Qualified, because argument-dependent lookup would also find at::device_of.
    tensor_.device = yoke::device_of(owner_);
    tensor_.ndim = static_cast<int32_t>(owner_.dim());
    tensor_.dtype = data_type(dtype_of(owner_.scalar_type()));
    // YokeTensor has no const here, but callees do not write through shape and strides.
    tensor_.shape = const_cast<int64_t*>(owner_.sizes().data());
    tensor_.strides = const_cast<int64_t*>(owner_.strides().data());
  }
  const YokeTensor* get() const { return &tensor_; }

 private:
  at::Tensor owner_;
  YokeTensor tensor_{};
};

// Returns a tensor of the contract that owns t. Pass it to the other side, which calls the deleter
// once, on any thread.
inline YokeManagedTensor* to_managed(at::Tensor t) {
  // The deleter frees the owner, and with it the reference to t.
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
