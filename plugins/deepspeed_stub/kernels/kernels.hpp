// The arithmetic over flat arrays: one table of functions for each kind of device.
//
// On the CPU they are single-threaded loops, compiled for several instruction sets and chosen at
// run time. On a CUDA device they issue work to a queue and return at once. Arrays are contiguous,
// are in device memory, and do not overlap. `count` is a number of elements.
#pragma once

#include <cstdint>

#include "yoke/optimizer.h"

namespace yoke::deepspeed_stub {

// The upper 16 bits of a float.
struct BFloat16 {
  uint16_t bits;
};

// An fp16 number.
struct Float16 {
  uint16_t bits;
};

// A queue of work for a device. The work is done in the order of the calls. Each kind of device
// derives its own class. On the CPU, work is done at once and the queue is NULL.
struct Queue {};

// `total` elements in rows of `width`; the last row may be shorter. Rows start from_stride elements
// apart in the first array, and to_stride apart in the second.
struct Rows {
  int64_t total, width, from_stride, to_stride;
};
constexpr Rows one_row(int64_t count) {
  return {count, count, count, count};
}

// The result of a step, in device memory. The first three members are summed over all ranks.
struct StepTotals {
  double loss;          // sum over all targets
  double targets;       // number of targets
  double squared_norm;  // squared norm of all gradients
  double scale;         // factor of the gradients: clips them, and removes the loss scale
  int64_t update;       // 0 = the step changes nothing
};

// What decides whether and how a step updates.
struct UpdateRule {
  double claimed;     // number of targets of the batch
  double clip;        // bound of the gradient norm; 0 = none
  double loss_scale;  // factor of the loss that the gradients contain
};

// Parameters and moments are updated in place. Unless `copy` is NULL, the updated parameters are
// also written there, rounded to 16 bits; the model computes with these.
template <class Master, class Gradient, class Copy>
struct UpdateArrays {
  Master *param, *exp_avg;
  Master* exp_avg_sq;  // NULL for Lion
  const Gradient* gradient;
  Copy* copy;
};

// Multiplies the gradients by totals->scale and updates the arrays by the formulas of AdamW, of its
// variants or of Lion, as step.kind says. Does nothing if totals->update is 0.
template <class Master, class Gradient, class Copy>
using UpdateKernel = void (*)(Queue*,
                              int64_t count,
                              const YokeUpdate& step,
                              const UpdateArrays<Master, Gradient, Copy>& arrays,
                              const StepTotals* totals);
// Sets *sum to the sum of the squares of x.
template <class T>
using NormKernel = void (*)(Queue*, int64_t count, const T* x, double* sum);
// Copies, casts or adds rows.
template <class From, class To>
using RowKernel = void (*)(Queue*, const Rows& rows, const From* from, To* to);

struct Kernels {
  const char* name;  // name of the instruction set, or of the kind of device

  // Named by the dtype of the gradients; the last two write copies in fp16, the others in bf16.
  UpdateKernel<float, float, BFloat16> update_fp32;
  UpdateKernel<float, BFloat16, BFloat16> update_bf16;
  UpdateKernel<double, double, BFloat16> update_fp64;
  UpdateKernel<float, Float16, Float16> update_fp16;
  UpdateKernel<float, float, Float16> update_fp32_to_fp16;

  // The sum is in fp64 for every type.
  NormKernel<float> squared_norm_fp32;
  NormKernel<BFloat16> squared_norm_bf16;
  NormKernel<double> squared_norm_fp64;
  NormKernel<Float16> squared_norm_fp16;

  // Compute to += from. A 16-bit sum is rounded after each addition.
  RowKernel<float, float> add_fp32;
  RowKernel<double, double> add_fp64;
  RowKernel<BFloat16, BFloat16> add_bf16;
  RowKernel<BFloat16, float> add_bf16_to_fp32;
  RowKernel<Float16, Float16> add_fp16;
  RowKernel<Float16, float> add_fp16_to_fp32;

  // Compute to = from. A cast to 16 bits rounds to the nearest value, ties to even, and keeps NaN.
  RowKernel<float, BFloat16> fp32_to_bf16;
  RowKernel<BFloat16, float> bf16_to_fp32;
  RowKernel<float, double> fp32_to_fp64;
  RowKernel<float, Float16> fp32_to_fp16;
  RowKernel<Float16, float> fp16_to_fp32;

  // Copy elements of two, four and eight bytes without a change.
  RowKernel<uint16_t, uint16_t> copy_2;
  RowKernel<uint32_t, uint32_t> copy_4;
  RowKernel<uint64_t, uint64_t> copy_8;

  // Sets *totals to `values`. On a CUDA device `values` is copied when the work is issued.
  void (*set_totals)(Queue*, const StepTotals& values, StepTotals* totals);
  // Sets totals->scale and totals->update from the sums over all ranks. totals->update becomes 1 if
  // the norm is finite and totals->targets equals `claimed`, the number of targets of the batch, up
  // to rounding; else 0.
  void (*decide_update)(Queue*, const UpdateRule& rule, StepTotals* totals);
};

// The kernels for every instruction set that this machine's CPU has, the widest last.
struct KernelSets {
  const Kernels* set[3];
  int count;
};
KernelSets all_kernels();
// Returns the last one of all_kernels().
const Kernels& kernels();

}  // namespace yoke::deepspeed_stub
