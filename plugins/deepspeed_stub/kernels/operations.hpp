// The work of one thread of a CUDA kernel, in plain C++.
//
// An operation is the work of a kernel on its arrays; run_share does one thread's share of it. The
// CUDA kernels in cuda_platform.cu only compute the thread number and call these functions. The
// tests can therefore run all of this code on a CPU, one thread after another.
#pragma once

#include <algorithm>

#include "plugins/deepspeed_stub/kernels/elements.hpp"

namespace yoke::deepspeed_stub {

constexpr int64_t kAccess = 16;  // bytes that a thread reads or writes in one access

// One element, or several that are read or written together and are aligned to kAccess bytes.
template <class T, int kCount>
struct __attribute__((aligned(kCount == 1 ? alignof(T) : kAccess), may_alias)) Pack {
  T at[kCount];
};
template <int kCount, class T>
static inline YOKE_HOST_DEVICE Pack<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T>
static inline YOKE_HOST_DEVICE void store(const Pack<T, kCount>& pack, T* to) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}
template <class... T>
static inline YOKE_HOST_DEVICE bool are_aligned(const T*... arrays) {
  return (... && (reinterpret_cast<uintptr_t>(arrays) % kAccess == 0));
}
// The number of elements that a thread processes at a time: as many of the narrowest type as fit
// into kAccess bytes. Wider types take several accesses.
template <class... T>
constexpr int kWidthOf = static_cast<int>(kAccess) / static_cast<int>(std::min({sizeof(T)...}));

static inline YOKE_HOST_DEVICE int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- Operations ----
//
// run<n>(i) processes elements [i, i + n). n is 1, or it is kWidth and aligned(i) is true.
// Operations on rows have pointers `from` and `to`, which run_row moves to the start of a row.

template <class From, class To>
struct CopyOf {
  static constexpr int kWidth = kWidthOf<From, To>;
  const From* from;
  To* to;

  YOKE_HOST_DEVICE bool aligned(int64_t i) const { return are_aligned(from + i, to + i); }
  template <int kCount>
  YOKE_HOST_DEVICE void run(int64_t i) {
    const Pack<From, kCount> x = load<kCount>(from + i);
    Pack<To, kCount> y;
    for (int k = 0; k < kCount; ++k) convert(x.at[k], &y.at[k]);
    store(y, to + i);
  }

  // Equal types are copied as they are.
  template <class T>
  static YOKE_HOST_DEVICE void convert(T x, T* y) {
    *y = x;
  }
  template <class T, class U>
  static YOKE_HOST_DEVICE void convert(T x, U* y) {
    assign(widen(x), y);
  }
};

template <class From, class To>
struct SumOf {
  static constexpr int kWidth = kWidthOf<From, To>;
  const From* from;
  To* to;

  YOKE_HOST_DEVICE bool aligned(int64_t i) const { return are_aligned(from + i, to + i); }
  template <int kCount>
  YOKE_HOST_DEVICE void run(int64_t i) {
    const Pack<From, kCount> x = load<kCount>(from + i);
    Pack<To, kCount> sum = load<kCount>(to + i);
    for (int k = 0; k < kCount; ++k) assign(widen(sum.at[k]) + widen(x.at[k]), &sum.at[k]);
    store(sum, to + i);
  }
};

template <class Master, class Gradient, class Copy, bool kCopy>
struct AdamW {
  static constexpr int kWidth =
      kCopy ? kWidthOf<Master, Gradient, Copy> : kWidthOf<Master, Gradient>;
  UpdateArrays<Master, Gradient, Copy> arrays;
  AdamWCoefficients<Master> coefficients;
  const StepTotals* totals;
  Master scale = 0;

  // Reads the totals of the step from device memory. Returns false if there is no update.
  YOKE_HOST_DEVICE bool begin() {
    scale = static_cast<Master>(totals->scale);
    return totals->update != 0;
  }
  YOKE_HOST_DEVICE bool aligned(int64_t i) const {
    const UpdateArrays<Master, Gradient, Copy>& a = arrays;
    return are_aligned(a.param + i, a.exp_avg + i, a.exp_avg_sq + i, a.gradient + i) &&
           (!kCopy || are_aligned(a.copy + i));
  }
  template <int kCount>
  YOKE_HOST_DEVICE void run(int64_t i) {
    const Pack<Gradient, kCount> gradient = load<kCount>(arrays.gradient + i);
    Pack<Master, kCount> p = load<kCount>(arrays.param + i);
    Pack<Master, kCount> m = load<kCount>(arrays.exp_avg + i);
    Pack<Master, kCount> v = load<kCount>(arrays.exp_avg_sq + i);
    Pack<Copy, kCount> rounded;
    for (int k = 0; k < kCount; ++k) {
      const Master g = with_decay(coefficients, scale * widen(gradient.at[k]), p.at[k]);
      m.at[k] = next_exp_avg(coefficients, g, m.at[k]);
      v.at[k] = next_exp_avg_sq(coefficients, g, v.at[k]);
      p.at[k] = next_param(coefficients, p.at[k], m.at[k], v.at[k]);
      if constexpr (kCopy) assign(static_cast<float>(p.at[k]), &rounded.at[k]);
    }
    store(p, arrays.param + i);
    store(m, arrays.exp_avg + i);
    store(v, arrays.exp_avg_sq + i);
    if constexpr (kCopy) store(rounded, arrays.copy + i);
  }
};

template <class Master, class Gradient, class Copy, bool kCopy>
struct Lion {
  static constexpr int kWidth =
      kCopy ? kWidthOf<Master, Gradient, Copy> : kWidthOf<Master, Gradient>;
  UpdateArrays<Master, Gradient, Copy> arrays;
  LionCoefficients<Master> coefficients;
  const StepTotals* totals;
  Master scale = 0;

  // Reads the totals of the step from device memory. Returns false if there is no update.
  YOKE_HOST_DEVICE bool begin() {
    scale = static_cast<Master>(totals->scale);
    return totals->update != 0;
  }
  YOKE_HOST_DEVICE bool aligned(int64_t i) const {
    const UpdateArrays<Master, Gradient, Copy>& a = arrays;
    return are_aligned(a.param + i, a.exp_avg + i, a.gradient + i) &&
           (!kCopy || are_aligned(a.copy + i));
  }
  template <int kCount>
  YOKE_HOST_DEVICE void run(int64_t i) {
    const Pack<Gradient, kCount> gradient = load<kCount>(arrays.gradient + i);
    Pack<Master, kCount> p = load<kCount>(arrays.param + i);
    Pack<Master, kCount> m = load<kCount>(arrays.exp_avg + i);
    Pack<Copy, kCount> rounded;
    for (int k = 0; k < kCount; ++k) {
      const Master g = scale * widen(gradient.at[k]);
      p.at[k] = lion_param(coefficients, p.at[k], g, m.at[k]);
      m.at[k] = lion_exp_avg(coefficients, g, m.at[k]);
      if constexpr (kCopy) assign(static_cast<float>(p.at[k]), &rounded.at[k]);
    }
    store(p, arrays.param + i);
    store(m, arrays.exp_avg + i);
    if constexpr (kCopy) store(rounded, arrays.copy + i);
  }
};

// SetTotals and DecideUpdate are run by a single thread.
struct SetTotals {
  StepTotals values;
  StepTotals* totals;
  YOKE_HOST_DEVICE void operator()() const { *totals = values; }
};
struct DecideUpdate {
  UpdateRule rule;
  StepTotals* totals;
  YOKE_HOST_DEVICE void operator()() const { decide_update(rule, *totals); }
};

// ---- Threads ----

// Processes the share of elements [0, n) that belongs to thread number `thread` of `threads`.
// Elements before index `head`, the first at which all arrays are aligned, and those after the last
// full pack are processed one at a time; all others kWidth at a time. If the arrays are never
// aligned at the same index, every element is processed on its own.
template <class Operation>
static inline YOKE_HOST_DEVICE void run_share(Operation& operation,
                                              int64_t n,
                                              int64_t thread,
                                              int64_t threads) {
  constexpr int kWidth = Operation::kWidth;
  int64_t head = 0;
  while (head < smaller(kWidth, n) && !operation.aligned(head)) ++head;
  if (head == kWidth) head = n;
  const int64_t packs = (n - head) / kWidth, rest = n - packs * kWidth;
  for (int64_t p = thread; p < packs; p += threads) {
    operation.template run<kWidth>(head + p * kWidth);
  }
  for (int64_t i = thread; i < rest; i += threads) {
    operation.template run<1>(i < head ? i : i + packs * kWidth);
  }
}

// Processes one thread's share of one row.
template <class Operation>
static inline YOKE_HOST_DEVICE void run_row(
    Operation operation, const Rows& rows, int64_t row, int64_t thread, int64_t threads) {
  operation.from += row * rows.from_stride;
  operation.to += row * rows.to_stride;
  run_share(operation, smaller(rows.width, rows.total - row * rows.width), thread, threads);
}
// Returns the number of rows.
static inline YOKE_HOST_DEVICE int64_t number_of(const Rows& rows) {
  return rows.total == 0 ? 0 : (rows.total + rows.width - 1) / rows.width;
}

// ---- Norms ----
//
// Each block of threads computes a partial sum, and one more block adds these up. The order of the
// additions depends only on the number of elements, not on alignment, so a norm is the same
// wherever a slice begins in memory. Atomic additions would take less code, but their order changes
// from run to run.

constexpr int kNormThreads = 512;
constexpr int kNormBlocks = kNormThreads;
template <class T>
constexpr int norm_blocks(int64_t n) {
  constexpr int64_t kPerBlock = int64_t{kNormThreads} * kWidthOf<T>;
  return static_cast<int>(std::clamp<int64_t>((n + kPerBlock - 1) / kPerBlock, 1, kNormBlocks));
}

template <int kCount, class T>
static inline YOKE_HOST_DEVICE void add_squares(const T* x, double* sum) {
  const Pack<T, kCount> values = load<kCount>(x);
  for (int k = 0; k < kCount; ++k) {
    const double value = widen(values.at[k]);
    *sum += value * value;
  }
}
// Returns the partial sum of thread number `thread` of `threads`. Unaligned arrays are read element
// by element, in the same order.
template <class T>
static inline YOKE_HOST_DEVICE double norm_share(const T* x,
                                                 int64_t n,
                                                 int64_t thread,
                                                 int64_t threads) {
  constexpr int kWidth = kWidthOf<T>;
  const bool aligned = are_aligned(x);
  const int64_t packs = n / kWidth;
  double sum = 0;
  for (int64_t p = thread; p < packs; p += threads) {
    if (aligned) {
      add_squares<kWidth>(x + p * kWidth, &sum);
    } else {
      for (int k = 0; k < kWidth; ++k) add_squares<1>(x + p * kWidth + k, &sum);
    }
  }
  if (packs * kWidth + thread < n) add_squares<1>(x + packs * kWidth + thread, &sum);
  return sum;
}
// Does one thread's share of one level of a tree reduction, which reduces a block's sums from 2 x
// half to `half`.
static inline YOKE_HOST_DEVICE void fold(double* sums, int thread, int half) {
  if (thread < half) sums[thread] += sums[thread + half];
}

}  // namespace yoke::deepspeed_stub
