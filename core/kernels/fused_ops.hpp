// The operators of core/kernels/ops.hpp, each as a single autograd node built on matrix products
// and on the row kernels of cpu_kernels.hpp. linears(), linear_add(), rotary() and swiglu() also
// compute on a device, with its runtime. Called by ops.cpp only, for tensors for which takes(),
// multiplies() or rotates() returns true.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "core/kernels/ops.hpp"
#include "yoke/torch.hpp"

namespace yoke::ops::fused {

// Returns true for plain dense tensors in CPU memory that share one dtype for which kernels exist.
// A wrapper, e.g. a sharded tensor, has no storage of its own and must intercept every ATen
// operator.
bool takes(std::initializer_list<const at::Tensor*> tensors);
// Returns true if linears(), linear_add() and swiglu() take the tensors: those of takes(), and such
// tensors in the memory of a device.
bool multiplies(std::initializer_list<const at::Tensor*> tensors);

WeightQueue* defer_weights(WeightQueue* queue);
GradientSums* add_gradients_to(GradientSums* sums);
// biases: one for each weight, or empty. input_first, lifetimes: see ops::Matrix.
std::vector<at::Tensor> linears(const at::Tensor& x,
                                const std::vector<at::Tensor>& weights,
                                const std::vector<at::Tensor>& biases,
                                bool input_first,
                                const std::vector<int>& lifetimes);
at::Tensor linear_add(const at::Tensor& residual,
                      const at::Tensor& x,
                      const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias,
                      bool input_first);
// Returns rows [N, in] times the transpose of weight [out, in]. Uses ATen operators only, so
// takes() need not be true. Like the two operators above, it can leave the gradient of the weight
// to the queue.
at::Tensor product_of_rows(const at::Tensor& rows, const at::Tensor& weight, bool input_first);
// Only for bf16 and fp16; see ops.cpp.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids);
Normed rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// Returns true if rotary() takes an x of queries or keys: one that multiplies() returns true for,
// with angles in fp64 if x is fp64, and otherwise in fp32.
bool rotates(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
QueriesAndKeys rotary(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& cos,
                      const at::Tensor& sin);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
// The longest sequence for causal_attention(). ATen's flash attention is faster for longer ones.
inline constexpr int64_t kLongestAttention = 1024;
// starts: ops::Documents::starts.
at::Tensor causal_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            int64_t window,
                            const at::Tensor& starts);
at::Tensor cross_entropy_sum(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace yoke::ops::fused
