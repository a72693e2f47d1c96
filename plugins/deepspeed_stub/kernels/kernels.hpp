// The arithmetic of the optimizer over flat arrays, for one CPU thread, compiled for several
// instruction sets and chosen at run time. Arrays are compact and do not overlap.
#pragma once

#include <cstdint>

namespace yoke::deepspeed_stub {

// The upper half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

// One AdamW update as the contract defines it (YokeOptimizer). g = scale * gradient.
struct AdamWStep {
  double lr, beta1, beta2, eps;
  double decay;  // decoupled weight decay
  double scale;  // of clipping
  int64_t step;  // 1 is the first
};

// Parameters and moments are updated in place. The weights, rounded, are written to `copy` unless
// it is NULL: the copy that the model computes with.
template <class Master, class Gradient>
struct AdamWArrays {
  Master *param, *exp_avg, *exp_avg_sq;
  const Gradient* gradient;
  BFloat16* copy;
};

struct Kernels {
  const char* name;  // of the instruction set

  void (*adamw_fp32)(int64_t count, const AdamWStep& step, const AdamWArrays<float, float>& arrays);
  void (*adamw_bf16)(int64_t count,
                     const AdamWStep& step,
                     const AdamWArrays<float, BFloat16>& arrays);
  void (*adamw_fp64)(int64_t count,
                     const AdamWStep& step,
                     const AdamWArrays<double, double>& arrays);

  // Sum of squares, in fp64.
  double (*squared_norm_fp32)(int64_t count, const float* x);
  double (*squared_norm_bf16)(int64_t count, const BFloat16* x);
  double (*squared_norm_fp64)(int64_t count, const double* x);

  // sum += x
  void (*add_fp32)(int64_t count, const float* x, float* sum);
  void (*add_fp64)(int64_t count, const double* x, double* sum);
  void (*add_bf16)(int64_t count, const BFloat16* x, BFloat16* sum);
  void (*add_bf16_to_fp32)(int64_t count, const BFloat16* x, float* sum);

  // Casts; to bf16 rounds to the nearest, ties to even, and keeps NaN.
  void (*fp32_to_bf16)(int64_t count, const float* from, BFloat16* to);
  void (*bf16_to_fp32)(int64_t count, const BFloat16* from, float* to);
  void (*fp32_to_fp64)(int64_t count, const float* from, double* to);
};

// What this machine can run, best last.
struct KernelSets {
  const Kernels* set[3];
  int count;
};
KernelSets all_kernels();
const Kernels& kernels();  // the best

}  // namespace yoke::deepspeed_stub
