// Cross entropy on a device. The forward reads the logits once and writes two numbers for each row.
// The backward computes softmax = exp(logit - lse) again, where lse is the log-sum-exp of the row,
// and overwrites the logits with their gradient, because the logits are the largest tensor of a
// model. See kernels.hpp.
#pragma once

#include <cmath>

#include "core/cuda/elements.hpp"

namespace yoke {

constexpr int64_t kUncountedTarget = -100;  // the target of a row that does not count

// A log-sum-exp that is not finished: `sum` of exp(x - most) over numbers x up to `most`. It
// becomes NaN if any of the numbers is NaN or plus infinity.
template <class W>
struct LogSumExp {
  W most = -static_cast<W>(INFINITY);
  W sum = 0;

  // What is subtracted before exp(): the largest number, unless there is none.
  YOKE_HOST_DEVICE static W shift(W most) { return most == -static_cast<W>(INFINITY) ? 0 : most; }

  template <class T, int n>
  YOKE_HOST_DEVICE void add(const Pack<T, n>& numbers) {
    W larger = most;
    for (int k = 0; k < n; ++k) {
      const auto x = static_cast<W>(numbers.v[k]);
      larger = x > larger ? x : larger;
    }
    if (larger > most) {
      sum *= std::exp(most - larger);
      most = larger;
    }
    const W base = shift(most);
    for (int k = 0; k < n; ++k) sum += std::exp(static_cast<W>(numbers.v[k]) - base);
  }

  YOKE_HOST_DEVICE LogSumExp merged(const LogSumExp& other) const {
    LogSumExp all;
    all.most = most > other.most ? most : other.most;
    const W base = shift(all.most);
    all.sum = sum * std::exp(most - base) + other.sum * std::exp(other.most - base);
    return all;
  }

  YOKE_HOST_DEVICE W value() const { return shift(most) + std::log(sum); }
};

// Writes the loss and the log-sum-exp of each row of logits [rows, columns], whose rows begin
// `stride` elements apart. The loss of a row without a target is 0, and that of a target outside
// the columns is NaN.
template <class T>
struct CrossEntropy {
  static constexpr Kind kKind = Kind::kReductions;
  static constexpr int kWidth = kPack<T>;

  const T* logits;
  const int64_t* targets;
  Wide<T>* losses;
  Wide<T>* lse;
  int64_t rows, columns, stride;

  bool takes_packs() const { return stride % kPack<T> == 0 && are_aligned({logits}); }
  int64_t elements_of_row() const { return columns; }

  // Returns the share of one thread of the log-sum-exp of a row.
  template <int n>
  YOKE_HOST_DEVICE LogSumExp<Wide<T>> part(int64_t row, int thread, int threads) const {
    LogSumExp<Wide<T>> sum;
    const T* const from = logits + row * stride;
    const int64_t packed = columns / n * n;
    for (int64_t i = int64_t{thread} * n; i < packed; i += int64_t{threads} * n)
      sum.add(load<n>(from + i));
    for (int64_t i = packed + thread; i < columns; i += threads) sum.add(load<1>(from + i));
    return sum;
  }

  // Writes the results of a row. `sum` is that of all threads.
  YOKE_HOST_DEVICE void finish(int64_t row, const LogSumExp<Wide<T>>& sum) const {
    const int64_t target = targets[row];
    lse[row] = sum.value();
    if (target == kUncountedTarget) {
      losses[row] = 0;
    } else if (target < 0 || target >= columns) {
      losses[row] = static_cast<Wide<T>>(NAN);
    } else {
      losses[row] = lse[row] - static_cast<Wide<T>>(logits[row * stride + target]);
    }
  }
};

// Overwrites the logits with their gradient, (softmax - onehot of the target) * *dy, which is 0 in
// rows without a target.
template <class T>
struct CrossEntropyBackward {
  static constexpr Kind kKind = Kind::kRows;
  static constexpr int kWidth = kPack<T>;

  T* logits;
  const int64_t* targets;
  const Wide<T>* lse;
  const Wide<T>* dy;
  int64_t rows, columns, stride;

  bool takes_packs() const { return stride % kPack<T> == 0 && are_aligned({logits}); }
  int64_t elements_of_row() const { return columns; }

  // Computes the share of one thread of a row, n neighbouring elements at a time.
  template <int n>
  YOKE_HOST_DEVICE void run(int64_t row, int thread, int threads) const {
    const int64_t target = targets[row], packed = columns / n * n;
    const Wide<T> sum = lse[row], factor = target == kUncountedTarget ? 0 : *dy;
    T* const at = logits + row * stride;
    for (int64_t i = int64_t{thread} * n; i < packed; i += int64_t{threads} * n)
      put<n>(at + i, target - i, sum, factor);
    for (int64_t i = packed + thread; i < columns; i += threads)
      put<1>(at + i, target - i, sum, factor);
  }

 private:
  // Overwrites n logits of a row. target: its index among them. sum: the log-sum-exp of the row.
  template <int n>
  static YOKE_HOST_DEVICE void put(T* at, int64_t target, Wide<T> sum, Wide<T> factor) {
    Pack<T, n> p = load<n>(at);
    for (int k = 0; k < n; ++k) {
      const Wide<T> softmax = std::exp(static_cast<Wide<T>>(p.v[k]) - sum);
      const Wide<T> gradient = factor * (k == target ? softmax - 1 : softmax);
      p.v[k] = static_cast<T>(factor == 0 ? 0 : gradient);
    }
    store(p, at);
  }
};

}  // namespace yoke
