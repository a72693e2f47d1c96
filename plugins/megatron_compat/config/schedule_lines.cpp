// Megatron counts samples, so its rate of update k is that after (k - 1) batches: the first update
// of a warmup has the rate --lr-warmup-init. The host's schedules are the same with first_step = 0.
//
// Two schedules differ. inverse-square-root falls from the start of the run, not from the end of
// the warmup; both are equal only with a warmup and --min-lr 0. After --lr-decay-iters it has the
// rate --min-lr. A WSD decay that begins within the warmup is entered in its middle by Megatron,
// and at its beginning by the host. These cases are refused.
#include "plugins/megatron_compat/config/schedule_lines.hpp"

#include <cmath>
#include <string_view>

#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

struct Style {
  std::string_view megatron, here;
};
constexpr Style kStyles[] = {{"constant", "constant"},
                             {"linear", "linear"},
                             {"cosine", "cosine"},
                             {"inverse-square-root", "inverse_sqrt"},
                             {"WSD", "wsd"}};
constexpr Style kDecays[] = {{"exponential", "exponential"},
                             {"linear", "linear"},
                             {"cosine", "cosine"},
                             {"minus_sqrt", "sqrt"}};

template <size_t N>
std::string_view find(const Style (&styles)[N], std::string_view megatron) {
  for (const Style& style : styles) {
    if (style.megatron == megatron) return style.here;
  }
  return "";
}

// A number of steps, and the argument that decides it; 0 = unknown.
struct Steps {
  int64_t count = 0;
  std::string argument;
};

class Writer {
 public:
  Writer(const Config& config, int64_t batch, compat::RunLines& lines)
      : config_(config), batch_(batch), lines_(lines) {}

  void write() {
    const Steps train = steps("--train-iters", "--train-samples");
    if (train.count > 0) lines_.add(train.argument, "train.steps", concat(train.count));
    Steps total = steps("--lr-decay-iters", "--lr-decay-samples");
    if (total.count == 0) total = train;
    if (const auto lr = config_.number("--lr")) {
      lines_.add("--lr", "train.lr", concat(*lr));
      write_schedule(*lr, total, train.count);
    } else {
      lines_.refuse("--lr", "a number above 0", "Megatron requires it");
    }
  }

 private:
  // train: number of steps of the run, 0 = unknown.
  void write_schedule(double lr, const Steps& total, int64_t train) {
    const std::string style = config_.word("--lr-decay-style").value_or("");
    const std::string_view schedule = find(kStyles, style);
    if (schedule.empty()) return;  // already refused
    const int64_t warmup = write_warmup(lr, total);
    lines_.add("--lr-decay-style", "train.schedule", concat("\"", schedule, "\""));
    if (schedule == "constant") return;
    const double least = config_.number("--min-lr").value_or(0);
    if (schedule == "inverse_sqrt") {
      if (warmup == 0 || least != 0)
        lines_.refuse(
            "--lr-decay-style",
            "with --lr-warmup-iters above 0 and --min-lr 0",
            "the schedule of Megatron is that of train.schedule = \"inverse_sqrt\" only then");
      // The rate of step k is that of k - 1 steps, and at the end itself it is not --min-lr yet.
      if (total.count < train - 1)
        lines_.refuse(total.argument,
                      concat(train - 1, " steps or more"),
                      "after that many steps the rate of Megatron is --min-lr");
      return;
    }
    if (least > lr) lines_.refuse("--min-lr", concat("at most ", lr), "it is above --lr");
    lines_.add("--min-lr", "train.min_lr_factor", concat(least / lr));
    if (total.count > 0) lines_.add(total.argument, "lr_schedule.total_steps", concat(total.count));
    if (schedule == "wsd") write_wsd(warmup, total.count - warmup);
  }
  // Returns the number of steps of the warmup.
  int64_t write_warmup(double lr, const Steps& total) {
    Steps warmup = steps("--lr-warmup-iters", "--lr-warmup-samples");
    if (warmup.argument.empty()) warmup.argument = "--lr-warmup-iters";
    if (const auto fraction = config_.number("--lr-warmup-fraction")) {
      if (warmup.count > 0)
        lines_.refuse("--lr-warmup-fraction", "unset", concat("it contradicts ", warmup.argument));
      const double exact = *fraction * static_cast<double>(total.count);
      warmup = {std::llround(exact), "--lr-warmup-fraction"};
      if (std::abs(exact - static_cast<double>(warmup.count)) > 1e-9)
        lines_.refuse("--lr-warmup-fraction",
                      "a fraction that gives a whole number of steps",
                      concat("a warmup of ",
                             exact,
                             " steps is not a whole number of steps; use "
                             "--lr-warmup-iters"));
    }
    lines_.add(warmup.argument, "train.warmup", concat(warmup.count));
    const double init = config_.number("--lr-warmup-init").value_or(0);
    if (warmup.count > 0) {
      lines_.add(warmup.argument, "lr_schedule.first_step", "0");
      lines_.add("--lr-warmup-init", "lr_schedule.start_factor", concat(init / lr));
    }
    if (total.count > 0 && warmup.count >= total.count)
      lines_.refuse(warmup.argument,
                    concat("less than ", total.count),
                    "the warmup must end before the schedule does");
    return warmup.count;
  }
  // most: number of steps between the warmup and the end of the schedule.
  void write_wsd(int64_t warmup, int64_t most) {
    const Steps decay = steps("--lr-wsd-decay-iters", "--lr-wsd-decay-samples");
    if (decay.count == 0) {
      lines_.refuse("--lr-decay-style", "", "WSD needs --lr-wsd-decay-iters");
      return;
    }
    // A warmup that leaves no step is refused already.
    if (most > 0 && decay.count > most)
      lines_.refuse(decay.argument,
                    concat("at most ", most, " steps"),
                    warmup > 0 ? "the decay would begin within the warmup"
                               : "the decay would begin before the first step");
    lines_.add(decay.argument, "lr_schedule.decay_steps", concat(decay.count));
    const std::string shape = config_.word("--lr-wsd-decay-style").value_or("");
    if (const std::string_view here = find(kDecays, shape); !here.empty())
      lines_.add("--lr-wsd-decay-style", "lr_schedule.decay_shape", concat("\"", here, "\""));
  }
  // Reads a number of steps, which may be given as a number of samples.
  Steps steps(const char* iterations, const char* samples) {
    const auto by_iterations = config_.integer(iterations);
    const auto by_samples = config_.integer(samples);
    if (config_.is_given(iterations) && config_.is_given(samples))
      lines_.refuse(
          samples, "unset", concat("it contradicts ", iterations, "; remove one of them"));
    if (by_iterations.value_or(0) > 0) return {*by_iterations, iterations};
    if (by_samples.value_or(0) <= 0) return {};
    if (batch_ == 0) {
      lines_.refuse(samples, concat(iterations, " instead"), "it needs --global-batch-size");
      return {};
    }
    if (*by_samples % batch_ != 0)
      lines_.refuse(samples, concat("a multiple of ", batch_), "a step trains on one global batch");
    return {*by_samples / batch_, samples};
  }
  const Config& config_;
  const int64_t batch_;
  compat::RunLines& lines_;
};

}  // namespace

void add_schedule_lines(const Config& config, int64_t batch, compat::RunLines& lines) {
  Writer(config, batch, lines).write();
}

}  // namespace yoke::megatron_compat
