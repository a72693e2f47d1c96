// The rule is that of Pfair scheduling on one processor (earliest deadline first among the released
// tasks), which keeps every task within less than one quantum of its share. Whole numbers instead
// of doubles make the order exact and periodic, so that the source of any sample is one look-up and
// a resumed run replays nothing.
//
// Rejected: a random source for each sample, whose counts drift from the weights by the square root
// of their number; a stateful counter, which every rank and every resumed run would have to
// restore; and rounding cumulative weights, which would sometimes take a sample back from a source.
#include "core/data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/config/value.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr double kScale = 1e6;          // weights have at most six decimals
constexpr double kLargestWeight = 1e9;  // bound of a weight, so that sums fit in 64 bits

std::string text_of(const std::vector<double>& weights) {
  std::vector<Value> list;
  for (const double weight : weights) list.push_back({weight});
  return "data.weights = " + to_text(Value{list});
}

// Returns the weights as whole numbers without a common divisor.
std::vector<int64_t> whole_numbers(const std::vector<double>& weights) {
  std::vector<int64_t> parts;
  int64_t divisor = 0;
  for (const double weight : weights) {
    const bool in_range = weight > 0 && weight <= kLargestWeight;
    const int64_t part = in_range ? std::llround(weight * kScale) : 0;
    // Division rounds correctly, so the result equals the weight only if the weight has no more
    // decimals.
    if (part < 1 || static_cast<double>(part) / kScale != weight)
      throw Error(YOKE_INVALID_ARGUMENT,
                  text_of(weights) + ": " + to_text(weight) +
                      " cannot be used; allowed: above 0, at most 1e9, with at most six decimals; "
                      "for thirds write [1, 2]");
    parts.push_back(part);
    divisor = std::gcd(divisor, part);
  }
  for (int64_t& part : parts) part /= divisor;
  return parts;
}

int64_t period_of(const std::vector<double>& weights, const std::vector<int64_t>& parts) {
  int64_t period = 0;
  for (const int64_t part : parts) {
    period += part;
    if (period <= Mixture::kMaxPeriod) continue;
    throw Error(
        YOKE_INVALID_ARGUMENT,
        text_of(weights) + ": their order would repeat only after more than " +
            concat(Mixture::kMaxPeriod, " samples; allowed: weights that are, divided by ") +
            "their greatest common divisor, whole numbers with a sum of at most " +
            concat(Mixture::kMaxPeriod, "; give fewer digits"));
  }
  return period;
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) : parts_(whole_numbers(weights)) {
  if (parts_.empty()) throw Error(YOKE_INVALID_ARGUMENT, "data.weights has no weight; give one");
  const int64_t period = period_of(weights, parts_);
  std::vector<int64_t> taken(parts_.size()), deadline(parts_.size());
  const auto set_deadline = [&](size_t s) {
    deadline[s] = ((taken[s] + 1) * period + parts_[s] - 1) / parts_[s] - 1;
  };
  for (size_t s = 0; s < parts_.size(); ++s) set_deadline(s);
  for (int64_t n = 0; n < period; ++n) {
    size_t chosen = parts_.size();
    for (size_t s = 0; s < parts_.size(); ++s) {
      const bool released = taken[s] * period < parts_[s] * (n + 1);
      if (released && (chosen == parts_.size() || deadline[s] < deadline[chosen])) chosen = s;
    }
    order_.push_back(static_cast<uint32_t>(chosen));
    index_.push_back(static_cast<uint32_t>(taken[chosen]++));
    set_deadline(chosen);
  }
}

Mixture::Place Mixture::at(int64_t sample) const {
  const auto slot = static_cast<size_t>(sample % period());
  const size_t source = order_[slot];
  return {source, sample / period() * parts_[source] + index_[slot]};
}

int64_t Mixture::count(size_t source, int64_t samples) const {
  const auto rest = order_.begin() + samples % period();
  return samples / period() * parts_[source] +
         std::count(order_.begin(), rest, static_cast<uint32_t>(source));
}

double Mixture::share(size_t source) const {
  return static_cast<double>(parts_[source]) / static_cast<double>(period());
}

}  // namespace yoke
