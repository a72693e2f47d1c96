#include "core/run/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr double kWsdDecay = 0.2;  // share of the steps in which "wsd" decays

// Returns p as defined in learning_rate.hpp: 0 up to step start + 1, and 1 after step `end`.
double progress(int64_t step, int64_t start, int64_t end) {
  if (step <= start + 1) return 0;
  if (step > end) return 1;
  return static_cast<double>(step - 1 - start) / static_cast<double>(end - start);
}

}  // namespace

double learning_rate(const TrainConfig& train, int64_t step) {
  if (step < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("learning_rate: step ", step, "; allowed: 1 or more"));
  }
  if (step <= train.warmup) {
    return train.lr * static_cast<double>(step) / static_cast<double>(train.warmup);
  }
  if (train.lr_schedule == "constant") return train.lr;
  const auto rate = [&](double share) {
    return train.lr * (train.min_lr_factor + (1 - train.min_lr_factor) * share);
  };
  const double p = progress(step, train.warmup, train.steps);
  if (train.lr_schedule == "linear") return rate(1 - p);
  if (train.lr_schedule == "cosine") return rate(0.5 * (1 + std::cos(std::numbers::pi * p)));
  if (train.lr_schedule == "wsd") {
    const auto decay =
        static_cast<int64_t>(std::llround(kWsdDecay * static_cast<double>(train.steps)));
    const int64_t start = std::max(train.warmup, train.steps - decay);
    return rate(1 - progress(step, start, train.steps));
  }
  throw Error(
      YOKE_INVALID_ARGUMENT,
      "train.schedule = '" + train.lr_schedule + "'; allowed are constant, linear, cosine and wsd");
}

}  // namespace yoke
