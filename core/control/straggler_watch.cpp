#include "core/control/straggler_watch.hpp"

#include <algorithm>

namespace yoke {

std::optional<StragglerWatch::Straggler> StragglerWatch::take(int32_t rank,
                                                              int64_t pp_rank,
                                                              int64_t step,
                                                              double seconds) {
  Rank& own = ranks_[rank];
  own.pp_rank = pp_rank;
  if (own.first == 0) own.first = step;
  if (step < own.first + kWarmup) return std::nullopt;
  own.at = {step, seconds};
  if (own.since.step == 0) own.since = own.at;
  const bool ended = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) {
    return r.at.step - r.since.step >= kWindow;
  });
  if (!ended) return std::nullopt;

  int32_t found = -1;
  double factor = kFactor;
  const std::map<int64_t, double> medians = this->medians();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const double median = medians.at(ranks_[r].pp_rank);
    if (median <= 0 || ranks_[r].per_step() <= factor * median) continue;
    found = static_cast<int32_t>(r);
    factor = ranks_[r].per_step() / median;
  }
  const int64_t begin = ranks_[0].since.step;
  for (Rank& r : ranks_) r.since = r.at;
  if (found >= 0 && found == suspect_) return Straggler{found, factor, suspect_since_};
  suspect_ = found;
  suspect_since_ = begin;
  return std::nullopt;
}

// Returns the median time per step of the ranks of each stage. Of an even number of ranks it is the
// lower one: of two ranks, that of the faster one.
std::map<int64_t, double> StragglerWatch::medians() const {
  std::map<int64_t, std::vector<double>> stages;
  for (const Rank& r : ranks_) stages[r.pp_rank].push_back(r.per_step());
  std::map<int64_t, double> medians;
  for (auto& [pp_rank, times] : stages) {
    std::sort(times.begin(), times.end());
    medians[pp_rank] = times[(times.size() - 1) / 2];
  }
  return medians;
}

}  // namespace yoke
