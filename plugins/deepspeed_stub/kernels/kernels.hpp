// The arithmetic over flat arrays: for each kind of device one table of functions. On the CPU they
// are loops of one thread, compiled for several instruction sets and chosen at run time; on a CUDA
// device they issue work and come back. Arrays are compact and do not overlap.
#pragma once

#include <cstdint>

namespace yoke::deepspeed_stub {

// The upper half of a float's bits.
struct BFloat16 {
  uint16_t bits;
};

// Where a device takes its work: one in, one done, in the order of the calls. A device derives its
// own; the CPU, which works at once, has none.
struct Queue {};

// Elements in rows of `width`, of which the last may be short: those of one array lie from_stride
// apart, those of the other to_stride.
struct Rows {
  int64_t total, width, from_stride, to_stride;
};
constexpr Rows one_row(int64_t count) {
  return {count, count, count, count};
}

// What a step comes to, in memory of the device. The first three are summed over all ranks.
struct StepTotals {
  double loss, targets, squared_norm;
  double scale;    // of the gradients, by clipping
  int64_t update;  // 0 = the step changes nothing
};

// One AdamW update as the contract defines it (YokeOptimizer).
struct AdamWStep {
  double lr, beta1, beta2, eps;
  double decay;  // decoupled weight decay
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

// Gradients are multiplied with totals->scale; does nothing if totals->update is 0.
template <class Master, class Gradient>
using AdamWKernel = void (*)(Queue*,
                             int64_t count,
                             const AdamWStep& step,
                             const AdamWArrays<Master, Gradient>& arrays,
                             const StepTotals* totals);
template <class T>
using NormKernel = void (*)(Queue*, int64_t count, const T* x, double* sum);
template <class From, class To>
using RowKernel = void (*)(Queue*, const Rows& rows, const From* from, To* to);

struct Kernels {
  const char* name;  // of the instruction set, or of the device

  AdamWKernel<float, float> adamw_fp32;
  AdamWKernel<float, BFloat16> adamw_bf16;
  AdamWKernel<double, double> adamw_fp64;

  // Sum of squares, in fp64.
  NormKernel<float> squared_norm_fp32;
  NormKernel<BFloat16> squared_norm_bf16;
  NormKernel<double> squared_norm_fp64;

  // to += from
  RowKernel<float, float> add_fp32;
  RowKernel<double, double> add_fp64;
  RowKernel<BFloat16, BFloat16> add_bf16;
  RowKernel<BFloat16, float> add_bf16_to_fp32;

  // Casts; to bf16 rounds to the nearest, ties to even, and keeps NaN.
  RowKernel<float, BFloat16> fp32_to_bf16;
  RowKernel<BFloat16, float> bf16_to_fp32;
  RowKernel<float, double> fp32_to_fp64;

  // Elements of two, four and eight bytes as they are.
  RowKernel<uint16_t, uint16_t> copy_2;
  RowKernel<uint32_t, uint32_t> copy_4;
  RowKernel<uint64_t, uint64_t> copy_8;

  void (*set_totals)(Queue*, const StepTotals& values, StepTotals* totals);
  // Sets scale and update from the sums of all ranks. There is no update unless the norm is finite
  // and totals->targets is `claimed`, the number of targets of the batch.
  void (*decide_update)(Queue*, double claimed, double clip, StepTotals* totals);
};

// What this machine's CPU can run, best last.
struct KernelSets {
  const Kernels* set[3];
  int count;
};
KernelSets all_kernels();
const Kernels& kernels();  // the best

}  // namespace yoke::deepspeed_stub
