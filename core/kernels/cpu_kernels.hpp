// Fused row kernels of a transformer block for one CPU thread, compiled for several instruction
// sets and chosen at run time. Does not need LibTorch. All arrays are contiguous and row-major, and
// no output overlaps an input, unless a comment says so. Any thread; the functions keep no state
// and allocate nothing.
#pragma once

#include <cstdint>

namespace yoke {

// A bf16 number: the upper half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

// An fp16 number.
struct Float16 {
  uint16_t bits;
};

template <class T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<BFloat16> {
  using type = float;
};
template <>
struct WideOf<Float16> {
  using type = float;
};
// The type in which sums, angles and exponentials of T are computed: fp64 for fp64, otherwise fp32.
template <class T>
using Wide = typename WideOf<T>::type;

// B = batch, S = seq_len, D = head_dim. heads is a multiple of kv_heads: heads / kv_heads query
// heads share one kv head. window: number of tokens to which a token attends, itself included; 0 =
// all before it.
struct AttentionShape {
  int64_t batch, seq_len, heads, kv_heads, head_dim, window = 0;
};

// The tensors of causal attention. lse is the log-sum-exp of each row of scores; a name that begins
// with d is the gradient of the loss with respect to the rest of the name. The forward reads q, k,
// v and starts and writes out and lse. The backward reads all of these and dout, and writes dq, dk
// and dv.
template <class T>
struct AttentionData {
  const T* q = nullptr;  // [B, S, heads, D]
  const T* k = nullptr;  // [B, S, kv_heads, D]
  const T* v = nullptr;  // [B, S, kv_heads, D]
  // [B, S]: the first key that a query may attend to; never less than that of the query before it.
  // NULL = the first of the sequence.
  const int64_t* starts = nullptr;
  T* out = nullptr;        // [B, S, heads, D]
  Wide<T>* lse = nullptr;  // [B, heads, S]
  const T* dout = nullptr;
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
};

// The kernels for one element type T.
template <class T>
struct CpuKernels {
  using W = Wide<T>;

  // RMSNorm of `rows` rows of `dim` elements: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2)
  // + eps). Writes rstd [rows] for the backward.
  void (*rms_forward)(int64_t rows, int64_t dim, const T* x, const T* weight, W eps, T* y, W* rstd);
  // Writes dx, and adds the sum over the rows of dy * x * rstd to dweight [dim]. residual: a
  // gradient [rows, dim] that is added to dx; NULL = none.
  void (*rms_backward)(int64_t rows,
                       int64_t dim,
                       const T* dy,
                       const T* x,
                       const T* weight,
                       const W* rstd,
                       const T* residual,
                       T* dx,
                       W* dweight);

  // Rotates the pairs (i, i + D/2) of every head by `sign` times the angles of its token. sign = 1
  // is the forward; -1 is its inverse, which also computes the gradient. x and y are [tokens,
  // heads, D], cos and sin [tokens, D/2].
  void (*rotary)(int64_t tokens,
                 int64_t heads,
                 int64_t head_dim,
                 const T* x,
                 const W* cos,
                 const W* sin,
                 W sign,
                 T* y);

  // y = silu(gate) * up, with silu(g) = g / (1 + exp(-g)).
  void (*swiglu_forward)(int64_t count, const T* gate, const T* up, T* y);
  void (*swiglu_backward)(int64_t count, const T* dy, const T* gate, const T* up, T* dgate, T* dup);

  // Returns the sum of -log softmax(logits)[target] over the rows whose target is not `ignored`.
  // Writes the log-sum-exp of each row to lse [rows], for the backward. logits is [rows, vocab].
  // The targets that are not ignored must lie in [0, vocab).
  double (*cross_entropy_forward)(int64_t rows,
                                  int64_t vocab,
                                  const T* logits,
                                  const int64_t* targets,
                                  int64_t ignored,
                                  W* lse);
  // Replaces the logits by their gradient (softmax(logits) - onehot(target)) * scale, which is 0 in
  // ignored rows.
  void (*cross_entropy_backward)(int64_t rows,
                                 int64_t vocab,
                                 T* logits,
                                 const int64_t* targets,
                                 int64_t ignored,
                                 const W* lse,
                                 W scale);

  // Causal attention, in a window if the shape has one: softmax(q k^T / sqrt(D)) v. The pairs
  // (sequence, kv head) are independent of each other and numbered from 0; a call processes the
  // pairs [begin, end). `scratch` has attention_scratch() elements; its content does not matter.
  // Fast as long as the keys of one head fit in the cache.
  int64_t (*attention_scratch)(const AttentionShape& shape);
  void (*attention_forward)(const AttentionShape& shape,
                            int64_t begin,
                            int64_t end,
                            const AttentionData<T>& data,
                            W* scratch);
  void (*attention_backward)(const AttentionShape& shape,
                             int64_t begin,
                             int64_t end,
                             const AttentionData<T>& data,
                             W* scratch);
};

// All kernels for all types, compiled for one instruction set, and the function that computes the
// initial values of core/model/init.hpp.
struct CpuKernelTable {
  const char* instruction_set;
  CpuKernels<float> f32;
  CpuKernels<double> f64;
  CpuKernels<BFloat16> bf16;
  CpuKernels<Float16> f16;
  void (*init_uniform)(uint64_t key, double std, int64_t begin, int64_t count, float* dst);
};

// Returns the table for the widest vectors that this processor supports.
const CpuKernelTable& cpu_kernels();

// All tables that this processor supports, the narrowest vectors first.
struct CpuKernelTables {
  const CpuKernelTable* table[3];
  int count;
};
CpuKernelTables all_cpu_kernels();

// Returns the kernels of cpu_kernels() for T: float, double, BFloat16 or Float16.
template <class T>
const CpuKernels<T>& cpu_kernels_of();
template <>
inline const CpuKernels<float>& cpu_kernels_of<float>() {
  return cpu_kernels().f32;
}
template <>
inline const CpuKernels<double>& cpu_kernels_of<double>() {
  return cpu_kernels().f64;
}
template <>
inline const CpuKernels<BFloat16>& cpu_kernels_of<BFloat16>() {
  return cpu_kernels().bf16;
}
template <>
inline const CpuKernels<Float16>& cpu_kernels_of<Float16>() {
  return cpu_kernels().f16;
}

}  // namespace yoke
