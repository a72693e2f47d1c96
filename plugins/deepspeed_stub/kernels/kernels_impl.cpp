// The kernels of the CPU: plain loops that the compiler vectorises.
//
// CMakeLists.txt compiles this file once per instruction set, with a different name for the table
// each time. Intrinsics would need one version of each loop per set. Only the table has external
// linkage; see elements.hpp for the reason.
#include <algorithm>

#include "plugins/deepspeed_stub/kernels/elements.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Number of partial sums of a norm: enough to hide the latency of an addition. It is the same for
// every instruction set, so that the order of the additions is, too.
constexpr int64_t kLanes = 32;

// kCopy is a template argument because a branch inside the loop could keep it from being
// vectorised.
template <bool kCopy, class Master, class Gradient, class Copy>
void adamw_loop(int64_t count,
                const YokeAdamW& step,
                const UpdateArrays<Master, Gradient, Copy>& arrays,
                double factor) {
  const AdamWCoefficients<Master> c = adamw_coefficients<Master>(step);
  const auto scale = static_cast<Master>(factor);
  Master* __restrict__ const param = arrays.param;
  Master* __restrict__ const exp_avg = arrays.exp_avg;
  Master* __restrict__ const exp_avg_sq = arrays.exp_avg_sq;
  const Gradient* __restrict__ const gradient = arrays.gradient;
  Copy* __restrict__ const copy = arrays.copy;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Master g = with_decay(c, scale * widen(gradient[i]), param[i]);
    const Master m = next_exp_avg(c, g, exp_avg[i]);
    const Master v = next_exp_avg_sq(c, g, exp_avg_sq[i]);
    const Master p = next_param(c, param[i], m, v);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (kCopy) assign(static_cast<float>(p), &copy[i]);
  }
}

template <bool kCopy, class Master, class Gradient, class Copy>
void lion_loop(int64_t count,
               const YokeLion& step,
               const UpdateArrays<Master, Gradient, Copy>& arrays,
               double factor) {
  const LionCoefficients<Master> c = coefficients<Master>(step);
  const auto scale = static_cast<Master>(factor);
  Master* __restrict__ const param = arrays.param;
  Master* __restrict__ const exp_avg = arrays.exp_avg;
  const Gradient* __restrict__ const gradient = arrays.gradient;
  Copy* __restrict__ const copy = arrays.copy;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Master g = scale * widen(gradient[i]);
    const Master p = lion_param(c, param[i], g, exp_avg[i]);
    exp_avg[i] = lion_exp_avg(c, g, exp_avg[i]);
    param[i] = p;
    if constexpr (kCopy) assign(static_cast<float>(p), &copy[i]);
  }
}

template <bool kCopy, class Master, class Gradient, class Copy>
void update_loop(int64_t count,
                 const YokeUpdate& step,
                 const UpdateArrays<Master, Gradient, Copy>& arrays,
                 double factor) {
  if (yoke_is_lion(step.kind)) {
    lion_loop<kCopy>(count, step.lion, arrays, factor);
  } else {
    adamw_loop<kCopy>(count, step.adamw, arrays, factor);
  }
}

template <class Master, class Gradient, class Copy>
void update_all(Queue*,
                int64_t count,
                const YokeUpdate& step,
                const UpdateArrays<Master, Gradient, Copy>& arrays,
                const StepTotals* totals) {
  // The kernel makes this check, not its caller: on a GPU only kernels can read `totals`.
  if (totals->update == 0) return;
  if (arrays.copy != nullptr) {
    update_loop<true>(count, step, arrays, totals->scale);
  } else {
    update_loop<false>(count, step, arrays, totals->scale);
  }
}

template <class T>
void squared_norm(Queue*, int64_t count, const T* x, double* result) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) {
      const double value = widen(x[i + k]);
      lane[k] += value * value;
    }
  }
  // Fewer than kLanes elements are left, so each one has a lane of its own.
  for (int64_t k = 0; i < count; ++i, ++k) {
    const double value = widen(x[i]);
    lane[k] += value * value;
  }
  double sum = 0;
  for (const double part : lane) sum += part;
  *result = sum;
}

// Calls loop(count, from, to) for each row.
template <auto loop, class From, class To>
void by_rows(Queue*, const Rows& rows, const From* from, To* to) {
  for (int64_t done = 0; done < rows.total; done += rows.width) {
    loop(std::min(rows.width, rows.total - done), from, to);
    from += rows.from_stride;
    to += rows.to_stride;
  }
}

template <class T, class Sum>
void add(int64_t count, const T* x, Sum* sum) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) assign(widen(sum[i]) + widen(x[i]), &sum[i]);
}

template <class From, class To>
void cast(int64_t count, const From* from, To* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) assign(widen(from[i]), &to[i]);
}

// Copies bits: one instance serves all types of the same size.
template <class T>
void copy(int64_t count, const T* from, T* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

void set_totals(Queue*, const StepTotals& values, StepTotals* totals) {
  *totals = values;
}

void decide_update(Queue*, const UpdateRule& rule, StepTotals* totals) {
  deepspeed_stub::decide_update(rule, *totals);
}

}  // namespace

// A const object has internal linkage unless it is declared extern first.
extern const Kernels YOKE_DEEPSPEED_KERNELS;
const Kernels YOKE_DEEPSPEED_KERNELS = {
    YOKE_DEEPSPEED_KERNELS_SET,
    update_all<float, float, BFloat16>,
    update_all<float, BFloat16, BFloat16>,
    update_all<double, double, BFloat16>,
    update_all<float, Float16, Float16>,
    update_all<float, float, Float16>,
    squared_norm<float>,
    squared_norm<BFloat16>,
    squared_norm<double>,
    squared_norm<Float16>,
    by_rows<add<float, float>, float, float>,
    by_rows<add<double, double>, double, double>,
    by_rows<add<BFloat16, BFloat16>, BFloat16, BFloat16>,
    by_rows<add<BFloat16, float>, BFloat16, float>,
    by_rows<add<Float16, Float16>, Float16, Float16>,
    by_rows<add<Float16, float>, Float16, float>,
    by_rows<cast<float, BFloat16>, float, BFloat16>,
    by_rows<cast<BFloat16, float>, BFloat16, float>,
    by_rows<cast<float, double>, float, double>,
    by_rows<cast<float, Float16>, float, Float16>,
    by_rows<cast<Float16, float>, Float16, float>,
    by_rows<copy<uint16_t>, uint16_t, uint16_t>,
    by_rows<copy<uint32_t>, uint32_t, uint32_t>,
    by_rows<copy<uint64_t>, uint64_t, uint64_t>,
    set_totals,
    decide_update,
};

}  // namespace yoke::deepspeed_stub
