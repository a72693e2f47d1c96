// Translates the tensors of DeviceRuntime's operators into operations of kernels.hpp. What runs the
// operations is a parameter: kernels on a device, or, in the tests, loops on the CPU.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include "core/cuda/device_runtime.hpp"
#include "core/cuda/kernels.hpp"

namespace yoke {

// Run is a type with a function run(operation, device) for all operations of kernels.hpp.
template <class Run>
class DeviceOperators : public DeviceRuntime {
 public:
  void rotary(const at::Tensor& out,
              const at::Tensor& x,
              const at::Tensor& cos,
              const at::Tensor& sin,
              double sign) override {
    for_type(x, [&](auto zero) {
      using T = decltype(zero);
      Run::run(Rotation<T>{in<T>(x),
                           in<Wide<T>>(cos),
                           in<Wide<T>>(sin),
                           to<T>(out),
                           x.size(0) * x.size(1),
                           static_cast<int>(x.size(2)),
                           static_cast<int>(x.size(3) / 2),
                           static_cast<Wide<T>>(sign)},
               x.device());
    });
  }

  void swiglu(const at::Tensor& out, const at::Tensor& gate, const at::Tensor& up) override {
    for_type(gate, [&](auto zero) {
      using T = decltype(zero);
      Run::run(Swiglu<T>{in<T>(gate), in<T>(up), to<T>(out), gate.numel()}, gate.device());
    });
  }

  void swiglu_backward(const at::Tensor& dgate,
                       const at::Tensor& dup,
                       const at::Tensor& gate,
                       const at::Tensor& up,
                       const at::Tensor& dy) override {
    for_type(gate, [&](auto zero) {
      using T = decltype(zero);
      Run::run(
          SwigluBackward<T>{
              in<T>(gate), in<T>(up), in<T>(dy), to<T>(dgate), to<T>(dup), gate.numel()},
          gate.device());
    });
  }

  void cross_entropy(const at::Tensor& losses,
                     const at::Tensor& lse,
                     const at::Tensor& logits,
                     const at::Tensor& targets) override {
    for_type(logits, [&](auto zero) {
      using T = decltype(zero);
      Run::run(CrossEntropy<T>{in<T>(logits),
                               in<int64_t>(targets),
                               to<Wide<T>>(losses),
                               to<Wide<T>>(lse),
                               logits.size(0),
                               logits.size(1)},
               logits.device());
    });
  }

  void cross_entropy_backward(const at::Tensor& logits,
                              const at::Tensor& targets,
                              const at::Tensor& lse,
                              const at::Tensor& dy) override {
    for_type(logits, [&](auto zero) {
      using T = decltype(zero);
      Run::run(CrossEntropyBackward<T>{to<T>(logits),
                                       in<int64_t>(targets),
                                       in<Wide<T>>(lse),
                                       in<Wide<T>>(dy),
                                       logits.size(0),
                                       logits.size(1)},
               logits.device());
    });
  }

 private:
  // Without the type, LibTorch returns the address of a meta tensor, too.
  template <class T>
  static const T* in(const at::Tensor& t) {
    return static_cast<const T*>(t.const_data_ptr());
  }
  template <class T>
  static T* to(const at::Tensor& t) {
    return static_cast<T*>(t.mutable_data_ptr());
  }
  // Calls f with a zero of the type of the tensor's elements.
  template <class F>
  static void for_type(const at::Tensor& t, const F& f) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, t.scalar_type(), "yoke", [&] { f(scalar_t{}); });
  }
};

}  // namespace yoke
