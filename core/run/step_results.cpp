#include "core/run/step_results.hpp"

#include <cstring>

#include "core/base/mix.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Equal numbers have equal hashes, and so have two that are unknown.
uint64_t bits(double value) {
  if (value != value) return ~uint64_t{0};
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

void StepResults::check(const YokeStepArgs& args, const YokeStepResult& result, double targets) {
  const auto fail = [&](const std::string& text) {
    throw Error(YOKE_INTERNAL, concat("step ", args.step, ": ", text), -1, args.step);
  };
  // The backend adds up the targets over all ranks. If its sum differs from the host's own count,
  // the backend skipped a micro-batch or reduced the loss wrongly.
  if (result.loss_weight != targets) {
    fail(concat("the loss is the sum over ", result.loss_weight, " targets, but the batch has ") +
         concat(targets) +
         "; loss_weight of the model and the number of targets in its samples must agree");
  }
  if (result.grad_norm < 0) {
    fail(concat("the backend reports the gradient norm ", result.grad_norm) +
         "; allowed: 0 or more, infinity if a gradient is not finite, NaN if it is unknown");
  }
  step_ = args.step;
  result_ = result;
  for (const double value :
       {result.loss_sum, result.loss_weight, result.grad_norm, result.loss_scale})
    hash_ = mix64(hash_ ^ bits(value));
  hash_ = mix64(hash_ ^ static_cast<uint64_t>(result.skipped));
}

std::string StepResults::text() const {
  return string_printf("step %lld: loss_sum %.17g, grad_norm %.17g, loss_scale %.17g, skipped %d",
                       static_cast<long long>(step_),
                       result_.loss_sum,
                       result_.grad_norm,
                       result_.loss_scale,
                       result_.skipped);
}

void throw_difference(const std::vector<std::string>& texts) {
  std::string text = "the ranks have reported different results since the last report";
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    text = concat("the ranks report different results: rank 0 ", texts[0], "; rank ") +
           concat(rank, " ", texts[rank]);
    break;
  }
  throw Error(YOKE_INTERNAL,
              text +
                  "; every rank must report the sums over all ranks (see YokeStepResult in "
                  "parallel_backend.h); comm.check=off turns this check off");
}

}  // namespace yoke
