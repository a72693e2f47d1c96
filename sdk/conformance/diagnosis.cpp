// The run is repeated with one step, two and three, until its state differs from that of the
// reference. The reference then makes one usual mistake after the other. If its state is that of
// the backend, the mistake is found. A mistake leaves its own trace in moments and parameters, so
// two of them are rarely equal; the list begins with the likely ones.
//
// Otherwise the first moment of the first wrong step shows whether the gradient is wrong, or was
// rounded to 16 bits, or is right: then the fault is in the update.
#include "sdk/conformance/diagnosis.hpp"

#include <algorithm>
#include <cmath>

#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

struct Known {
  Mistake mistake;
  const char* name;
  const char* fix;
};

constexpr Known kKnown[] = {
    {Mistake::kNoReduction,
     "each rank uses its own gradient: the reduction over the data ranks is missing",
     "all-reduce the gradients over the data ranks before norm, clip and update"},
    {Mistake::kTimesRanks,
     "the gradient is multiplied by the number of data ranks: it is summed twice, or summed where "
     "loss_grad calls for a mean",
     "reduce every gradient once; with loss_grad = 1 / token_weight of the whole batch the sum "
     "needs "
     "no further factor"},
    {Mistake::kOverRanks,
     "the gradient is divided by the number of data ranks: it is averaged where it should be "
     "summed",
     "reduce with YOKE_SUM; loss_grad = 1 / token_weight contains the division already"},
    {Mistake::kTimesMicros,
     "the gradient is multiplied by the number of micro-batches",
     "add up the micro-batches and divide by token_weight of the whole batch once"},
    {Mistake::kOverMicros,
     "the gradient is divided by the number of micro-batches",
     "loss_grad = 1 / token_weight of the whole batch; do not divide by the micro-batches as well"},
    {Mistake::kMeanOfMeans,
     "the loss is a mean of means: each micro-batch is divided by its own number of targets",
     "loss_grad = 1 / token_weight of the whole batch for every micro-batch of every rank"},
    {Mistake::kClipBeforeSum,
     "each rank clips its own gradient, before the reduction",
     "reduce first, then compute the norm, then clip"},
    {Mistake::kClipShare,
     "each rank clips its own gradient at its share of the bound, before the reduction",
     "reduce first, then compute the norm, then clip"},
    {Mistake::kNormBeforeSum,
     "the norm is that of the rank's own gradient, before the reduction",
     "reduce first, then compute the norm, then clip"},
    {Mistake::kNoClip,
     "gradients are not clipped",
     "multiply them by clip / (norm + 1e-6) if that is below 1"},
    {Mistake::kKeepsGradient,
     "the gradient of a step still contains that of the step before",
     "set the gradients to zero when a step begins"},
    {Mistake::kNoBiasCorrection,
     "the bias correction of AdamW is missing",
     "divide the moments by 1 - beta^t, with the number of the step"},
    {Mistake::kEpsInside,
     "eps is added under the root",
     "divide by sqrt(v) / sqrt(1 - beta2^t) + eps"},
    {Mistake::kDecayInGradient,
     "weight decay is added to the gradient",
     "p = p - lr * weight_decay * p, before the rest of the update"},
    {Mistake::kNoDecay,
     "weight decay is not applied",
     "p = p - lr * weight_decay * p for parameters with decay"},
    {Mistake::kDecaysAll, "weight decay is applied to every parameter", "read YokeParameter.decay"},
    {Mistake::kPeakRate,
     "the learning rate is that of YokeOptimizer",
     "use YokeStepArgs.lr, the learning rate of the step"},
};

// How one tensor differs from another.
struct Distance {
  double largest = 0;  // largest difference, relative to the largest element
  double rounded = 1;  // share of the elements that differ by at most 2^-7 of their value
};

Distance distance(const WholeTensor& a, const WholeTensor& b) {
  Distance d;
  double scale = 1e-300;
  int64_t close = 0, all = 0;
  for (int64_t i = 0; i < b.count(); ++i) scale = std::max(scale, std::fabs(b.at(i)));
  for (int64_t i = 0; i < b.count(); ++i) {
    const double off = std::fabs(a.at(i) - b.at(i));
    d.largest = std::max(d.largest, off / scale);
    if (b.at(i) == 0) continue;
    ++all;
    close += off <= 0x1p-7 * std::fabs(b.at(i));
  }
  if (all > 0) d.rounded = static_cast<double>(close) / static_cast<double>(all);
  return d;
}

// Describes how the first moments of a step, or the parameters if there are none, differ from those
// of the reference.
Diagnosis describe(const RunSpec& spec, const State& state, const State& reference) {
  const std::vector<std::string> moments = spec.moments();
  if (moments.empty()) return {};
  std::string wrong;
  double largest = 0, rounded = 1;
  for (const auto& [key, expected] : reference) {
    if (!key.ends_with("/" + moments.front()) || state.count(key) == 0) continue;
    const Distance d = distance(state.at(key), expected);
    const Bounds bounds = bounds_of(spec.model.dtype);
    if (wrong.empty() && d.largest > std::max(bounds.state, bounds.whole))
      wrong = key.substr(0, key.rfind('/'));
    largest = std::max(largest, d.largest);
    rounded = std::min(rounded, d.rounded);
  }
  if (wrong.empty())
    return {"; the gradients are right, so the fault is in the update of the parameters",
            "compare the update with the formulas at YokeOptimizer, term by term"};
  if (largest <= 0x1p-6 && rounded >= 0.7)
    return {
        string_printf("; every gradient is off by rounding to 16 bits, at most %.1e of a tensor",
                      largest),
        "accumulate and reduce the gradients in reduce_dtype"};
  return {"; the gradient of " + wrong + " is wrong", ""};
}

// Trains and returns the state. Ranks may report different results.
State state_after(Subject& subject, const ParallelBackend& backend, const RunSpec& spec) {
  RunHooks hooks;
  hooks.ranks_may_differ = true;
  return standard_kinds(train(subject, backend, spec, hooks).state);
}

Diagnosis diagnose_step(Subject& subject, const RunSpec& spec, const State& state) {
  const Bounds bounds = bounds_of(spec.model.dtype);
  for (const Known& known : kKnown) {
    const State mistaken = reference_trace(subject, spec, {nullptr, 1, known.mistake}).state;
    if (state_difference(state, mistaken, bounds).empty())
      return {concat("; these are the numbers if ", known.name), known.fix};
  }
  return describe(spec, state, reference_trace(subject, spec).state);
}

}  // namespace

Diagnosis diagnose(Subject& subject, const ParallelBackend& backend, const RunSpec& spec) {
  if ((description_of(backend).traits & YOKE_OWN_UPDATE) != 0) return {};
  RunSpec few = spec;
  try {
    for (few.steps = 1; few.steps <= std::min(3, spec.steps); ++few.steps) {
      const State state = state_after(subject, backend, few);
      const State reference = reference_trace(subject, few).state;
      if (state_difference(state, reference, bounds_of(spec.model.dtype)).empty()) continue;
      Diagnosis found = diagnose_step(subject, few, state);
      if (few.steps > 1) found.text += concat("; step ", few.steps, " is the first wrong one");
      return found;
    }
    return {"; the first steps are right", ""};
  } catch (const std::exception&) {  // the run itself fails; that is reported elsewhere
    return {};
  }
}

}  // namespace yoke::conformance
