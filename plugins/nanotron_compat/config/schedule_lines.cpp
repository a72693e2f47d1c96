// nanotron's rate of update s, where the first update has s = 0, with w = lr_warmup_steps,
// t = lr_decay_starting_step and d = lr_decay_steps:
//
//   s <= w            lr s / max(w, 1) with a linear warmup, lr with a constant one
//   w < s < t         lr
//   t <= s < t + d    the decay from lr to min_decay_lr, over (s - t) / d
//   afterwards        min_decay_lr
//
// The host's schedules have the same rates with first_step = 0: "linear" and "cosine" if the decay
// follows the warmup, else "wsd". What they cannot express is refused: a decay that starts within
// the warmup, and the rate 0 that a linear warmup of 0 steps gives the first update. With w = 0 and
// d = 0 the rate is lr * lr, because nanotron then returns lr where LambdaLR expects a factor of
// lr. This is refused as well.
#include "plugins/nanotron_compat/config/schedule_lines.hpp"

#include <string>

#include "yoke/text.hpp"

namespace yoke::nanotron_compat {
namespace {

using compat::quoted;

constexpr const char* kTrainSteps = "tokens.train_steps";
constexpr const char* kRate = "optimizer.learning_rate_scheduler.learning_rate";
constexpr const char* kMinRate = "optimizer.learning_rate_scheduler.min_decay_lr";
constexpr const char* kWarmup = "optimizer.learning_rate_scheduler.lr_warmup_steps";
constexpr const char* kWarmupStyle = "optimizer.learning_rate_scheduler.lr_warmup_style";
constexpr const char* kDecayStart = "optimizer.learning_rate_scheduler.lr_decay_starting_step";
constexpr const char* kDecaySteps = "optimizer.learning_rate_scheduler.lr_decay_steps";
constexpr const char* kDecayStyle = "optimizer.learning_rate_scheduler.lr_decay_style";

// The sum of two such numbers fits into 64 bits.
constexpr int64_t kMostSteps = 1'000'000'000'000;

class Writer {
 public:
  Writer(const Config& config, compat::RunLines& lines) : config_(config), lines_(lines) {}

  void write() {
    lines_.integer(kTrainSteps, "train.steps");
    lines_.number(kRate, "train.lr");
    const auto steps = config_.integer(kTrainSteps);
    const auto rate = config_.number(kRate);
    if (!steps || !rate) return;  // already reported
    const int64_t warmup = config_.integer(kWarmup).value_or(0);
    const double least = config_.number(kMinRate).value_or(*rate);
    const bool is_linear = config_.word(kWarmupStyle) == "linear";
    if (!is_valid(*rate, least)) return;
    if (warmup == 0 && config_.integer(kDecaySteps) == 0)
      return refuse(kDecaySteps,
                    "unset, 1 or more",
                    "without a warmup and a decay nanotron trains with the square of "
                    "learning_rate; leave it out for a constant rate");
    if (least == *rate) {
      // A linear warmup of 0 steps is one of 1 step: its first rate is 0, and the next one is lr.
      write_warmup(is_linear ? std::max<int64_t>(warmup, 1) : 0);
      lines_.add(kMinRate, "train.schedule", quoted("constant"));
      return;
    }
    write_decay(warmup, is_linear, *steps);
    lines_.add(kMinRate, "train.min_lr_factor", concat(least / *rate));
  }

 private:
  bool is_valid(double rate, double least) {
    const size_t before = refused_;
    if (rate <= 0) refuse(kRate, "above 0", "it is the highest rate");
    if (least < 0 || least > rate)
      refuse(kMinRate, concat("0 to ", rate), "it must not be above learning_rate");
    for (const char* key : {kTrainSteps, kWarmup, kDecayStart, kDecaySteps}) {
      const int64_t steps = config_.integer(key).value_or(0);
      if (steps < 0 || steps > kMostSteps)
        refuse(key, concat("0 to ", kMostSteps), "it is a number of steps");
    }
    return refused_ == before;
  }
  void write_warmup(int64_t warmup) {
    lines_.add(kWarmup, "train.warmup", concat(warmup));
    if (warmup == 0) return;
    lines_.add(kWarmupStyle, "lr_schedule.first_step", "0");
    lines_.add(kWarmupStyle, "lr_schedule.start_factor", "0");
  }
  void write_decay(int64_t warmup, bool is_linear, int64_t steps) {
    const int64_t start = config_.integer(kDecayStart).value_or(warmup);
    const int64_t length = config_.integer(kDecaySteps).value_or(steps - warmup);
    if (is_linear && warmup == 0)
      return refuse(kWarmupStyle,
                    "constant",
                    "a linear warmup of 0 steps gives the first update the rate 0, which no "
                    "schedule here does before a decay");
    if (start < warmup)
      return refuse(kDecayStart, concat(warmup, " or more"), "it lies within the warmup");
    if (length < 1) return refuse(kDecaySteps, "1 or more", "it is a number of steps");
    write_warmup(is_linear ? warmup : 0);
    const std::string style = config_.word(kDecayStyle).value_or("");
    const int64_t before = is_linear ? warmup : 0;
    lines_.add(kDecaySteps, "lr_schedule.total_steps", concat(start + length));
    if (start == before && style != "1-sqrt") {
      lines_.add(kDecayStyle, "train.schedule", quoted(style));
      return;
    }
    lines_.add(kDecayStart, "train.schedule", quoted("wsd"));
    lines_.add(kDecaySteps, "lr_schedule.decay_steps", concat(length));
    lines_.add(kDecayStyle, "lr_schedule.decay_shape", quoted(style == "1-sqrt" ? "sqrt" : style));
  }
  void refuse(const char* key, std::string_view allowed, std::string_view hint) {
    ++refused_;
    lines_.refuse(key, allowed, hint);
  }

  const Config& config_;
  compat::RunLines& lines_;
  size_t refused_ = 0;
};

}  // namespace

void add_schedule_lines(const Config& config, compat::RunLines& lines) {
  Writer(config, lines).write();
}

}  // namespace yoke::nanotron_compat
