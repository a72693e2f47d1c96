// Fused row kernels of a transformer block for one CPU thread, compiled for several instruction
// sets and chosen at run time. Torch-free. All arrays are compact and row-major; outputs do not
// overlap inputs unless said.
#pragma once

#include <cstdint>

namespace yoke {

// The upper half of a float's bits.
struct BFloat16 {
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
// What sums, angles and exponentials are computed in: fp32, or fp64 for fp64.
template <class T>
using Wide = typename WideOf<T>::type;

// heads is a multiple of kv_heads.
struct AttentionShape {
  int64_t batch, seq_len, heads, kv_heads, head_dim;
};

// q, out, dout, dq [B, S, heads, D]; k, v, dk, dv [B, S, kv_heads, D]; lse [B, heads, S]. The
// forward writes out and lse and leaves what begins with d alone; the backward writes dq, dk and
// dv.
template <class T>
struct AttentionData {
  const T *q, *k, *v;
  T* out;
  Wide<T>* lse;
  const T* dout;
  T *dq, *dk, *dv;
};

template <class T>
struct CpuKernels {
  using W = Wide<T>;

  // y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps), per row of dim elements; rstd is
  // kept.
  void (*rms_forward)(int64_t rows, int64_t dim, const T* x, const T* weight, W eps, T* y, W* rstd);
  // dx, and the sum over the rows of dy * x * rstd added to dweight.
  void (*rms_backward)(int64_t rows,
                       int64_t dim,
                       const T* dy,
                       const T* x,
                       const T* weight,
                       const W* rstd,
                       T* dx,
                       W* dweight);

  // Turns the pairs (i, i + D/2) of every head by the angles of its token: sign = 1 forward, -1
  // back. x and y [tokens, heads, D], cos and sin [tokens, D/2].
  void (*rotary)(int64_t tokens,
                 int64_t heads,
                 int64_t head_dim,
                 const T* x,
                 const W* cos,
                 const W* sin,
                 W sign,
                 T* y);

  // y = silu(gate) * up.
  void (*swiglu_forward)(int64_t count, const T* gate, const T* up, T* y);
  void (*swiglu_backward)(int64_t count, const T* dy, const T* gate, const T* up, T* dgate, T* dup);

  // Sum of -log softmax(logits)[target] over the rows whose target is not `ignored`; lse = log sum
  // exp of each row is kept. Targets are in range.
  double (*cross_entropy_forward)(int64_t rows,
                                  int64_t vocab,
                                  const T* logits,
                                  const int64_t* targets,
                                  int64_t ignored,
                                  W* lse);
  // dlogits = (softmax - onehot) * scale, 0 for ignored rows.
  void (*cross_entropy_backward)(int64_t rows,
                                 int64_t vocab,
                                 const T* logits,
                                 const int64_t* targets,
                                 int64_t ignored,
                                 const W* lse,
                                 W scale,
                                 T* dlogits);

  // Causal attention, softmax(q k^T / sqrt(D)) v, keeping the log sum exp of each row of scores,
  // for the (sequence, kv head) pairs [begin, end) of batch * kv_heads; pairs are independent of
  // each other. Needs attention_scratch() elements per call; fast while the keys of one head fit a
  // cache.
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

// Every function above, and the counter-based initial values (core/model/init.hpp).
struct CpuKernelTable {
  const char* instruction_set;
  CpuKernels<float> f32;
  CpuKernels<double> f64;
  CpuKernels<BFloat16> bf16;
  void (*init_uniform)(uint64_t key, double std, int64_t begin, int64_t count, float* dst);
};

// The table for the widest vectors that this processor runs.
const CpuKernelTable& cpu_kernels();
// All tables that this processor runs, the narrowest first; for tests.
struct CpuKernelTables {
  const CpuKernelTable* table[3];
  int count;
};
CpuKernelTables all_cpu_kernels();

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

}  // namespace yoke
