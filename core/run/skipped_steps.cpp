#include "core/run/skipped_steps.hpp"

#include <cmath>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kDefaultInARow = 100;  // enough to find a scale from any start
constexpr size_t kMostListed = 8;        // step numbers in a message

[[noreturn]] void stop(int64_t step, const std::string& text) {
  throw Error(YOKE_DATA_LOSS, concat("step ", step, ": ", text), -1, step);
}

std::string number(double value) {
  return string_printf("%.10g", value);
}

}  // namespace

bool is_skipped(const YokeStepResult& result) {
  return result.skipped != 0 || std::isinf(result.grad_norm);
}

SkippedSteps::SkippedSteps(const RunConfig& run, int rank, Log& log)
    : most_in_a_row_(
          run.train.max_skipped.value_or(run.precision.param == "fp16" ? kDefaultInARow : 0)),
      rank_(rank),
      log_(log) {
  if (run.precision.param == "fp16") scaler_.emplace(run.loss_scale);
}

bool SkippedSteps::after(int64_t step, const YokeStepResult& result) {
  if (scaler_ && result.loss_scale != scaler_->scale()) {
    throw Error(YOKE_INTERNAL,
                concat("step ", step, ": the backend used the loss scale ", result.loss_scale) +
                    concat(", but was given ", scaler_->scale()) +
                    "; a backend that declares fp16 must apply YokeStepArgs.loss_scale and report "
                    "it in YokeStepResult.loss_scale",
                -1,
                step);
  }
  if (is_skipped(result)) {
    skip(step, result);
    return true;
  }
  const double loss = result.loss_sum / result.loss_weight;
  if (!std::isfinite(loss)) {
    stop(step,
         concat("loss ", loss, ", grad_norm ", result.grad_norm) +
             "; both must be finite: lower train.lr, or continue from an earlier checkpoint");
  }
  if (scaler_) scaler_->update(false);
  in_a_row_ = 0;
  return false;
}

void SkippedSteps::skip(int64_t step, const YokeStepResult& result) {
  ++counts_[step];
  ++total_;
  if (++in_a_row_ > most_in_a_row_) {
    const std::string values = concat("loss ", result.loss_sum / result.loss_weight) +
                               concat(", grad_norm ", result.grad_norm);
    if (most_in_a_row_ == 0) {
      stop(
          step,
          values + "; both must be finite: lower train.lr, or continue from an earlier checkpoint");
    }
    stop(step,
         values + concat("; train.max_skipped = ", most_in_a_row_) +
             " steps in a row have been skipped already; steps that overflowed: " + overflowed() +
             "; lower train.lr or loss_scale.static, or continue from an earlier checkpoint");
  }
  std::string line = concat("step ", step, ": gradients are not finite, so nothing is updated");
  if (scaler_) {
    const double before = scaler_->scale();
    if (!scaler_->update(true)) {
      stop(step,
           "gradients overflow although the loss scale is at its minimum, loss_scale.min = " +
               number(before) + "; steps that overflowed: " + overflowed() +
               "; lower train.lr, continue from an earlier checkpoint, or set loss_scale.min = 0 "
               "for a scale without a minimum");
    }
    line += "; loss scale " + number(before) +
            (scaler_->scale() == before ? ", unchanged" : ", now " + number(scaler_->scale()));
  }
  if (rank_ == 0) log_.info(line + "; the step is repeated with the next batch");
}

// Returns "3 (2 times), 7", the latest ones.
std::string SkippedSteps::overflowed() const {
  std::string text;
  const size_t skip = counts_.size() > kMostListed ? counts_.size() - kMostListed : 0;
  for (auto it = std::next(counts_.begin(), static_cast<ptrdiff_t>(skip)); it != counts_.end();
       ++it) {
    text += concat(text.empty() ? "" : ", ", it->first);
    if (it->second > 1) text += concat(" (", it->second, " times)");
  }
  return text;
}

void SkippedSteps::save(CheckpointInfo& info) const {
  info.skipped = total_;
  if (!scaler_) return;
  info.loss_scale = scaler_->state();
  info.loss_scale->skipped = total_;  // field of fp16 runs, which older releases read as well
}

void SkippedSteps::restore(const CheckpointInfo& info) {
  total_ = info.skipped;
  if (!scaler_) return;
  if (info.loss_scale) return scaler_->restore(*info.loss_scale);
  if (rank_ != 0) return;
  log_.warning(info.path + " holds no loss scale, because its run had another precision.param; " +
               "the loss scale starts at " + number(scaler_->scale()));
}

}  // namespace yoke
