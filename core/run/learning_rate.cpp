// Each schedule is a function of the step, as its authors published it. Segments (rise, hold,
// fall) could be composed to most of them, but not exactly: the originals differ in whether they
// count steps from 0 or 1, and a user who brings a file expects the same rates as in its program.
#include "core/run/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <string>

#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// What the formulas of learning_rate.hpp call w, T, k, s and m.
struct Inputs {
  const LrScheduleConfig& lr;
  double warmup, total, k, start, min;
};

double half_cosine(double p) {
  return 0.5 * (1 + std::cos(std::numbers::pi * p));
}

// ---- torchtitan and transformers ----

double progress(const Inputs& in) {
  return in.total <= in.warmup ? 1 : std::min(1.0, (in.k - in.warmup) / (in.total - in.warmup));
}
double above_min(const Inputs& in, double share) {
  return in.min + (1 - in.min) * share;
}
double constant(const Inputs&) {
  return 1;
}
double linear(const Inputs& in) {
  return above_min(in, 1 - progress(in));
}
double cosine(const Inputs& in) {
  return above_min(in, half_cosine(2 * in.lr.cycles.value_or(0.5) * progress(in)));
}
double cosine_restarts(const Inputs& in) {
  const double p = progress(in);
  const double turn = std::fmod(in.lr.cycles.value_or(1) * p, 1.0);
  return above_min(in, p >= 1 ? 0 : half_cosine(turn));
}
double polynomial(const Inputs& in) {
  return above_min(in, std::pow(1 - progress(in), in.lr.power));
}
double inverse_sqrt(const Inputs& in) {
  const double otherwise = in.warmup > 0 ? in.warmup : 10000;
  const double timescale = in.lr.timescale ? static_cast<double>(*in.lr.timescale) : otherwise;
  return 1 / std::sqrt(1 + (in.k - in.warmup) / timescale);
}
double wsd(const Inputs& in) {
  const double decay = in.lr.decay_steps ? static_cast<double>(*in.lr.decay_steps)
                                         : static_cast<double>(std::llround(0.2 * in.total));
  const double start = std::max(in.warmup, in.total - decay);
  if (in.k <= start) return 1;
  const double q = in.total <= start ? 1 : std::min(1.0, (in.k - start) / (in.total - start));
  if (in.lr.decay_shape == "cosine") return above_min(in, half_cosine(q));
  if (in.lr.decay_shape == "sqrt") return above_min(in, 1 - std::sqrt(q));
  return above_min(in, in.lr.decay_shape == "exponential" ? 2 * std::pow(0.5, q) - 1 : 1 - q);
}

template <double (*after_warmup)(const Inputs&)>
double with_warmup(const Inputs& in) {
  if (in.k >= in.warmup) return after_warmup(in);
  const double done = (in.k + static_cast<double>(in.lr.first_step)) / in.warmup;
  return in.start + (1 - in.start) * done;
}

// ---- DeepSpeed ----

double warmup_steps(const Inputs& in) {
  return std::max(2.0, in.warmup);
}
double above_start(const Inputs& in, double share) {
  return in.start + (1 - in.start) * share;
}
// Returns g for i < w.
double warmup_share(const Inputs& in, double i) {
  const double w = warmup_steps(in);
  return in.lr.warmup_shape == "log" ? std::log(i + 1) / std::log(w) : i / w;
}
double warmup_lr(const Inputs& in) {
  const double i = std::max(0.0, in.k - 1);
  return above_start(in, i < warmup_steps(in) ? warmup_share(in, i) : 1);
}
double warmup_decay_lr(const Inputs& in) {
  const double i = std::max(0.0, in.k - 1), w = warmup_steps(in);
  if (i < w) return above_start(in, warmup_share(in, i));
  return above_start(in, std::max(0.0, (in.total - i) / std::max(1.0, in.total - w)));
}
double warmup_cosine_lr(const Inputs& in) {
  const double i = in.k - 1, w = warmup_steps(in);
  if (i < 0) return 0;
  if (i < w) return above_start(in, warmup_share(in, i));
  const double p = std::min(1.0, (i - w + 1) / std::max(1.0, in.total - w));
  return above_min(in, half_cosine(p));
}

// Returns part / whole, rounded down to a multiple of 1 / count; 0 = not rounded. Both are numbers
// of steps.
double stairs(double part, double whole, int64_t count) {
  if (count == 0) return part / whole;
  const auto n = static_cast<double>(count);
  return std::floor(part * n / whole) / n;
}
double one_cycle(const Inputs& in) {
  const auto rise = static_cast<double>(in.lr.rise_steps);
  const auto fall = static_cast<double>(in.lr.fall_steps.value_or(in.lr.rise_steps));
  const double total = rise + fall;
  if (in.k > total) {
    if (in.lr.tail_steps == 0) return in.start;
    const double decays = (in.k - total) / static_cast<double>(in.lr.tail_steps);
    return in.start / (1 + in.lr.tail_rate * decays);
  }
  const double at = std::fmod(in.k, total);  // the cycle ends where it starts
  if (at <= rise) return above_start(in, stairs(at, rise, in.lr.rise_stairs));
  const int64_t fall_stairs = in.lr.fall_stairs.value_or(in.lr.rise_stairs);
  return above_start(in, stairs(total - at, fall, fall_stairs));
}
double range_test(const Inputs& in) {
  const double passed = in.k / static_cast<double>(in.lr.range_steps);
  return 1 + in.lr.range_rate * (in.lr.staircase ? std::floor(passed) : passed);
}

const std::map<std::string, double (*)(const Inputs&), std::less<>> kFactors{
    {"constant", with_warmup<constant>},
    {"linear", with_warmup<linear>},
    {"cosine", with_warmup<cosine>},
    {"cosine_restarts", with_warmup<cosine_restarts>},
    {"polynomial", with_warmup<polynomial>},
    {"inverse_sqrt", with_warmup<inverse_sqrt>},
    {"wsd", with_warmup<wsd>},
    {"WarmupLR", warmup_lr},
    {"WarmupDecayLR", warmup_decay_lr},
    {"WarmupCosineLR", warmup_cosine_lr},
    {"OneCycle", one_cycle},
    {"LRRangeTest", range_test}};

}  // namespace

double learning_rate(const TrainConfig& train, const LrScheduleConfig& lr, int64_t step) {
  if (step < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("learning_rate: step ", step, "; allowed: 1 or more"));
  }
  const auto factor = kFactors.find(train.lr_schedule);
  if (factor == kFactors.end()) {
    std::vector<std::string> names;
    for (const auto& [name, function] : kFactors) names.push_back(name);
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("train.schedule = '", train.lr_schedule, "'; allowed: ", join(names)));
  }
  return train.lr *
         factor->second({.lr = lr,
                         .warmup = static_cast<double>(train.warmup),
                         .total = static_cast<double>(lr.total_steps.value_or(train.steps)),
                         .k = static_cast<double>(step - 1),
                         .start = lr.start_factor,
                         .min = train.min_lr_factor});
}

}  // namespace yoke
