// Compiled once per instruction set, see CMakeLists.txt. Plain loops that the compiler vectorises;
// no function with external linkage but the table, so that no copy for a wide instruction set can
// be picked by the linker for a narrow machine.
#include <cmath>
#include <cstring>

#include "plugins/deepspeed_stub/kernels/kernels.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Partial sums of a norm: enough to hide the latency of an addition, in a fixed order.
constexpr int64_t kLanes = 32;

inline float widen(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline float widen(float x) {
  return x;
}
inline double widen(double x) {
  return x;
}

inline BFloat16 round_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t quiet = (bits >> 16) | 0x40u;                            // NaN stays NaN
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // ties to even
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest)};
}

// Constants of one step, in the type of the arithmetic.
template <class T>
struct Coefficients {
  explicit Coefficients(const AdamWStep& s)
      : keep(static_cast<T>(1 - s.lr * s.decay)),
        beta1(static_cast<T>(s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        rest1(static_cast<T>(1 - s.beta1)),
        rest2(static_cast<T>(1 - s.beta2)),
        eps(static_cast<T>(s.eps)),
        scale(static_cast<T>(s.scale)),
        rate(static_cast<T>(s.lr / (1 - std::pow(s.beta1, static_cast<double>(s.step))))),
        correct2(
            static_cast<T>(1 / std::sqrt(1 - std::pow(s.beta2, static_cast<double>(s.step))))) {}
  T keep, beta1, beta2, rest1, rest2, eps, scale, rate, correct2;
};

template <bool kCopy, class Master, class Gradient>
void adamw_loop(int64_t count, const AdamWStep& step, const AdamWArrays<Master, Gradient>& arrays) {
  const Coefficients<Master> c(step);
  Master* __restrict__ const param = arrays.param;
  Master* __restrict__ const exp_avg = arrays.exp_avg;
  Master* __restrict__ const exp_avg_sq = arrays.exp_avg_sq;
  const Gradient* __restrict__ const gradient = arrays.gradient;
  BFloat16* __restrict__ const copy = arrays.copy;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const Master g = c.scale * widen(gradient[i]);
    const Master m = c.beta1 * exp_avg[i] + c.rest1 * g;
    const Master v = c.beta2 * exp_avg_sq[i] + c.rest2 * g * g;
    const Master p = c.keep * param[i] - c.rate * m / (std::sqrt(v) * c.correct2 + c.eps);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    param[i] = p;
    if constexpr (kCopy) copy[i] = round_to_bf16(static_cast<float>(p));
  }
}

template <class Master, class Gradient>
void adamw(int64_t count, const AdamWStep& step, const AdamWArrays<Master, Gradient>& arrays) {
  if (arrays.copy != nullptr) {
    adamw_loop<true>(count, step, arrays);
  } else {
    adamw_loop<false>(count, step, arrays);
  }
}

template <class T>
double squared_norm(int64_t count, const T* x) {
  double lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
#pragma omp simd
    for (int64_t k = 0; k < kLanes; ++k) {
      const double value = widen(x[i + k]);
      lane[k] += value * value;
    }
  }
  for (int64_t k = 0; i < count; ++i, ++k) {
    const double value = widen(x[i]);
    lane[k] += value * value;
  }
  double sum = 0;
  for (const double part : lane) sum += part;
  return sum;
}

template <class T, class Sum>
void add(int64_t count, const T* x, Sum* sum) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sum[i] += widen(x[i]);
}

void add_bf16(int64_t count, const BFloat16* x, BFloat16* sum) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) sum[i] = round_to_bf16(widen(sum[i]) + widen(x[i]));
}

void fp32_to_bf16(int64_t count, const float* from, BFloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = round_to_bf16(from[i]);
}

template <class From, class To>
void widen_all(int64_t count, const From* from, To* to) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

}  // namespace

extern const Kernels YOKE_DEEPSPEED_KERNELS;
const Kernels YOKE_DEEPSPEED_KERNELS = {
    YOKE_DEEPSPEED_KERNELS_SET,
    adamw<float, float>,
    adamw<float, BFloat16>,
    adamw<double, double>,
    squared_norm<float>,
    squared_norm<BFloat16>,
    squared_norm<double>,
    add<float, float>,
    add<double, double>,
    add_bf16,
    add<BFloat16, float>,
    fp32_to_bf16,
    widen_all<BFloat16, float>,
    widen_all<float, double>,
};

}  // namespace yoke::deepspeed_stub
