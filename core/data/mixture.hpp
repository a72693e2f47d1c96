// The order in which samples are taken from the sources of a mixture. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace yoke {

// Says which source each sample 0, 1, 2, ... of a run comes from. Immutable; may be used from any
// thread.
class SourceOrder {
 public:
  struct Place {
    size_t source = 0;
    int64_t index = 0;  // number of samples of this source before it: its sampler's sample
  };
  virtual ~SourceOrder() = default;
  // Returns where sample `sample`, 0 or more, comes from.
  virtual Place at(int64_t sample) const = 0;
  // Returns how many of the first `samples` samples come from a source.
  virtual int64_t count(size_t source, int64_t samples) const = 0;
  // Returns the part of the samples that comes from a source.
  virtual double share(size_t source) const = 0;
};

// Assigns the samples 0, 1, 2, ... of a run to sources with weights. The rule depends on the
// weights alone:
//
//   1. The weights are reduced to whole numbers p_0, p_1, ... without a common divisor: 0.7 and 0.3
//      to 7 and 3. Their sum P is the period of the order.
//   2. A source s that has c of the samples before sample n may take sample n if c < p_s (n + 1) /
//      P, and must have taken one more by the end of sample d_s = ceil((c + 1) P / p_s) - 1.
//   3. Sample n goes to the source with the smallest d_s of those that may take it; the first of
//      them, if several have the same.
//
// After any number n of samples, the number of those of source s therefore differs from n p_s / P
// by less than 1, and after P samples the order repeats. With 0.7 and 0.3, the sources of the first
// ten samples are 0 0 1 0 0 1 0 0 0 1.
class Mixture final : public SourceOrder {
 public:
  // The largest period. A table of it takes 8 MB.
  static constexpr int64_t kMaxPeriod = 1'000'000;

  // Throws Error(INVALID_ARGUMENT) if there is no weight, if a weight is not above 0, is above 1e9
  // or has more than six decimals, or if the period would exceed kMaxPeriod.
  explicit Mixture(const std::vector<double>& weights);

  Place at(int64_t sample) const override;
  int64_t count(size_t source, int64_t samples) const override;
  double share(size_t source) const override;  // p_s / P
  size_t num_sources() const { return parts_.size(); }

 private:
  int64_t period() const { return static_cast<int64_t>(order_.size()); }

  std::vector<int64_t> parts_;  // p_s
  // The source of each sample of a period, and the number of samples of this source before it.
  std::vector<uint32_t> order_, index_;
};

}  // namespace yoke
