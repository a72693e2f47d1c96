// LibTorch's RMSNorm for CUDA is one operator; for the CPU LibTorch composes it. This is the only
// operator of the models of which that is true, so distributed tensors need rules on a device that
// they do not need on the CPU.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <tuple>

namespace yoke::testing {

// While it exists, LibTorch treats RMSNorm on the CPU as on CUDA. Must not be made or destroyed
// while another thread uses LibTorch.
class FusedRmsNorm {
 public:
  FusedRmsNorm()
      : kernels_(torch::Library::IMPL,
                 "aten",
                 c10::DispatchKey::CPU,
                 __FILE__,
                 static_cast<uint32_t>(__LINE__)) {
    kernels_.impl("_fused_rms_norm", TORCH_FN(forward));
    kernels_.impl("_fused_rms_norm_backward", TORCH_FN(backward));
  }
  FusedRmsNorm(const FusedRmsNorm&) = delete;
  FusedRmsNorm& operator=(const FusedRmsNorm&) = delete;

 private:
  static std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x,
                                                    at::IntArrayRef,
                                                    const std::optional<at::Tensor>& weight,
                                                    std::optional<double> eps) {
    const at::Tensor scale = (x.square().mean(-1, true) + eps.value()).rsqrt();
    return {x * scale * weight.value(), scale};
  }
  static std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& dy,
                                                     const at::Tensor& x,
                                                     at::IntArrayRef,
                                                     const at::Tensor& scale,
                                                     const std::optional<at::Tensor>& weight,
                                                     std::array<bool, 2>) {
    const at::Tensor normed = x * scale, weighted = dy * weight.value();
    const at::Tensor dx = (weighted - normed * (weighted * normed).mean(-1, true)) * scale;
    return {dx, (dy * normed).flatten(0, -2).sum(0)};
  }

  torch::Library kernels_;
};

}  // namespace yoke::testing
