#include "core/control/straggler_watch.hpp"

#include <algorithm>

namespace yoke {

std::optional<StragglerWatch::Straggler> StragglerWatch::take(int32_t rank,
                                                              int64_t step,
                                                              double seconds) {
  at_[rank] = {step, seconds};
  std::vector<double> per_step;
  for (size_t r = 0; r < at_.size(); ++r) {
    const int64_t steps = at_[r].step - since_[r].step;
    if (steps < kWindow) return std::nullopt;  // the window has not ended for this rank
    per_step.push_back((at_[r].seconds - since_[r].seconds) / static_cast<double>(steps));
  }
  const int64_t begin = since_[0].step + 1;
  since_ = at_;

  const auto slowest = std::max_element(per_step.begin(), per_step.end());
  const auto found = static_cast<int32_t>(slowest - per_step.begin());
  // Of an even number of ranks the lower median: of two ranks, it is the other one.
  std::vector<double> sorted = per_step;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[(sorted.size() - 1) / 2];
  if (median <= 0 || *slowest <= kFactor * median) {
    suspect_ = -1;
    return std::nullopt;
  }
  if (suspect_ != found) {
    suspect_ = found;
    suspect_since_ = begin;
    return std::nullopt;
  }
  return Straggler{found, *slowest / median, suspect_since_};
}

}  // namespace yoke
