// The order in which a run reads the windows of one part of its data. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/data/mixture.hpp"
#include "core/data/sampler.hpp"

namespace yoke {

// Maps the global sample numbers of a part of the data, the training part or the evaluation part,
// to windows. Immutable; may be used from any thread.
class SampleOrder {
 public:
  // The part has one source. A Sampler can be passed wherever an order is expected.
  SampleOrder(const Sampler& only) : samplers_{only} {}  // NOLINT(google-explicit-constructor)
  // Sample n comes from source mixture.at(n).source and is the sample mixture.at(n).index of its
  // sampler. There is one sampler for each source.
  SampleOrder(std::vector<Sampler> samplers, std::shared_ptr<const SourceOrder> mixture)
      : samplers_(std::move(samplers)), mixture_(std::move(mixture)) {}

  size_t num_sources() const { return samplers_.size(); }
  int64_t num_windows(size_t source) const { return samplers_[source].num_windows(); }
  // Returns the number of windows of all sources.
  int64_t num_windows() const {
    int64_t sum = 0;
    for (const Sampler& sampler : samplers_) sum += sampler.num_windows();
    return sum;
  }

  // Returns the window of global sample `sample`. Throws the errors of Sampler::window().
  int64_t window(int64_t sample) const {
    if (!mixture_ || sample < 0) return samplers_[0].window(sample);
    const SourceOrder::Place place = mixture_->at(sample);
    return samplers_[place.source].window(place.index);
  }

  // Returns how often the first `samples` samples read every window of a source: the number of
  // epochs, which need not be whole.
  double epochs(size_t source, int64_t samples) const {
    const int64_t taken = mixture_ ? mixture_->count(source, samples) : samples;
    return static_cast<double>(taken) / static_cast<double>(num_windows(source));
  }
  // Returns the part of the samples that comes from a source.
  double share(size_t source) const { return mixture_ ? mixture_->share(source) : 1; }

 private:
  std::vector<Sampler> samplers_;
  std::shared_ptr<const SourceOrder> mixture_;  // NULL: one source
};

}  // namespace yoke
