// Translates the tensors of DeviceRuntime's operators into operations of kernels.hpp. What runs the
// operations is a parameter: kernels on a device, or, in the tests, loops on the CPU.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <type_traits>

#include "core/cuda/device_runtime.hpp"
#include "core/cuda/kernels.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

// Run is a type with a function run(operation, device) for all operations of kernels.hpp.
template <class Run>
class DeviceOperators : public DeviceRuntime {
 public:
  void rotary(const std::vector<at::Tensor>& out,
              const std::vector<at::Tensor>& x,
              const at::Tensor& cos,
              const at::Tensor& sin,
              double sign) override {
    for_type(x[0], [&](auto zero) {
      using T = decltype(zero);
      Rotation<T> rotation{{},
                           in<Wide<T>>(cos),
                           in<Wide<T>>(sin),
                           x[0].size(0) * x[0].size(1),
                           static_cast<int>(x[0].size(3) / 2),
                           static_cast<Wide<T>>(sign)};
      for (size_t i = 0; i < x.size(); ++i)
        rotation.tensors[i] = {in<T>(x[i]),
                               to<T>(out[i]),
                               x[i].stride(1),
                               out[i].stride(1),
                               static_cast<int>(x[i].size(2))};
      Run::run(rotation, x[0].device());
    });
  }

  void rms_norm(const at::Tensor& y,
                const at::Tensor& scales,
                const at::Tensor& x,
                const at::Tensor& weight,
                double eps) override {
    for_type(x, [&](auto zero) {
      using T = decltype(zero);
      Run::run(Norm<T>{in<T>(x),
                       in<T>(weight),
                       to<T>(y),
                       to<Wide<T>>(scales),
                       x.size(0),
                       x.size(1),
                       static_cast<Wide<T>>(eps)},
               x.device());
    });
  }

  void rms_norm_backward(const NormGradients& out,
                         const at::Tensor& dy,
                         const at::Tensor& residual,
                         const at::Tensor& x,
                         const at::Tensor& weight,
                         const at::Tensor& scales) override {
    const int64_t rows = x.size(0), columns = x.size(1);
    // A line is the work of one block. Enough of them fill a large GPU, and too many take long to
    // be added up.
    constexpr int64_t kThreads = 132 * 1024;
    const int64_t threads = std::max<int64_t>(32, columns * x.element_size() / kAccessBytes);
    const int64_t line_count =
        std::clamp<int64_t>(rows / 8, 1, std::max(kThreads / threads, int64_t{1}));
    const at::Tensor lines = at::empty({line_count, columns}, scales.options());
    if (rows == 0) lines.zero_();
    for_type(x, [&](auto zero) {
      using T = decltype(zero);
      Run::run(NormBackward<T>{in<T>(dy),
                               in<T>(x),
                               in<T>(weight),
                               in<Wide<T>>(scales),
                               residual.defined() ? in<T>(residual) : nullptr,
                               to<T>(out.dx),
                               to<Wide<T>>(lines),
                               rows,
                               columns,
                               line_count},
               x.device());
      const auto add_up = [&](auto to_zero) {
        using Out = decltype(to_zero);
        Run::run(
            SumOfLines<T, Out>{
                in<Wide<T>>(lines), to<Out>(out.dweight), columns, line_count, out.accumulates},
            x.device());
      };
      out.dweight.scalar_type() == x.scalar_type() ? add_up(T{}) : add_up(Wide<T>{});
    });
  }

  void adamw(const AdamWTensors& t) override {
    const at::ScalarType copy = t.copy.defined() ? t.copy.scalar_type() : t.grads.scalar_type();
    const auto update = [&](auto master, auto gradient, auto rounded) {
      using M = decltype(master);
      using G = decltype(gradient);
      using C = decltype(rounded);
      static_assert(sizeof(AdamWCoefficients<M>) == kAdamWCoefficients * sizeof(M));
      using Update = AdamWUpdate<M, G, C>;
      Update whole{to<M>(t.params),
                   to<M>(t.exp_avg),
                   to<M>(t.exp_avg_sq),
                   in<G>(t.grads),
                   t.copy.defined() ? to<C>(t.copy) : nullptr,
                   in<AdamWCoefficients<M>>(t.coefficients),
                   t.divisor.defined() ? in<double>(t.divisor) : nullptr,
                   t.skip.defined() ? in<float>(t.skip) : nullptr,
                   t.params.numel()};
      // The elements after the last whole pack.
      const int64_t packed = whole.count / Update::kWidth * Update::kWidth;
      if (packed < whole.count) Run::run(whole.part(packed, whole.count), t.params.device());
      if (packed > 0) Run::run(whole.part(0, packed), t.params.device());
    };
    if (t.params.scalar_type() == at::kDouble) return update(double{}, double{}, double{});
    const auto with_copy = [&](auto gradient) {
      using G = decltype(gradient);
      if constexpr (std::is_same_v<G, float>) {
        if (copy == at::kHalf) return update(float{}, float{}, c10::Half{});
        if (copy == at::kBFloat16) return update(float{}, float{}, c10::BFloat16{});
      }
      update(float{}, G{}, G{});
    };
    if (t.grads.scalar_type() == at::kHalf) return with_copy(c10::Half{});
    if (t.grads.scalar_type() == at::kBFloat16) return with_copy(c10::BFloat16{});
    with_copy(float{});
  }

  void swiglu(const at::Tensor& out, const at::Tensor& gate, const at::Tensor& up) override {
    for_type(gate, [&](auto zero) {
      using T = decltype(zero);
      Run::run(Swiglu<T>{in<T>(gate), in<T>(up), to<T>(out), gate.numel(), rows_of(gate)},
               gate.device());
    });
  }

  void swiglu_backward(const at::Tensor& dgate,
                       const at::Tensor& dup,
                       const at::Tensor& gate,
                       const at::Tensor& up,
                       const at::Tensor& dy) override {
    for_type(gate, [&](auto zero) {
      using T = decltype(zero);
      Run::run(SwigluBackward<T>{in<T>(gate),
                                 in<T>(up),
                                 in<T>(dy),
                                 to<T>(dgate),
                                 to<T>(dup),
                                 gate.numel(),
                                 rows_of(gate),
                                 rows_of(dgate)},
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
                               logits.size(1),
                               logits.stride(0)},
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
                                       logits.size(1),
                                       logits.stride(0)},
               logits.device());
    });
  }

  void add_state_hash(const at::Tensor& sum, const YokePiece& piece) override {
    const int bits = piece.view->dtype.bits;
    const auto add = [&](auto zero) {
      using Bits = decltype(zero);
      const int64_t run = piece.stride == 0 ? piece.count : piece.run;
      const StridedRows spans{run, piece.stride == 0 ? run : piece.stride};
      Run::run(StateHash<Bits>{data<const Bits>(*piece.view),
                               reinterpret_cast<uint64_t*>(to<int64_t>(sum)),
                               piece.count,
                               piece.begin,
                               spans},
               sum.device());
    };
    if (bits == 8) return add(uint8_t{});
    if (bits == 16) return add(uint16_t{});
    if (bits == 32) return add(uint32_t{});
    TORCH_CHECK(bits == 64, "add_state_hash: elements of ", bits, " bits");
    add(uint64_t{});
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
  // The stride of a dim of size 1 means nothing.
  static StridedRows rows_of(const at::Tensor& t) {
    if (t.is_contiguous()) return {t.numel(), t.numel()};
    return {t.size(-1), t.stride(-2)};
  }
  // Calls f with a zero of the type of the tensor's elements.
  template <class F>
  static void for_type(const at::Tensor& t, const F& f) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, t.scalar_type(), "yoke", [&] { f(scalar_t{}); });
  }
};

}  // namespace yoke
