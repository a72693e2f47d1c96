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
    {Mistake::kOtherCorrection,
     "the bias correction of the moments is missing, or is made in a kind that has none",
     "divide the moments by 1 - beta^t, with the number of the step, unless the kind is one of the "
     "uncorrected ones"},
    {Mistake::kEpsInside,
     "eps is added under the root",
     "divide by sqrt(v) / sqrt(1 - beta2^t) + eps"},
    {Mistake::kOtherDecay,
     "weight decay is added to the gradient, or with Adam applied to the parameter",
     "p = p - lr * weight_decay * p, before the rest of the update; with Adam "
     "g = g + weight_decay * p"},
    {Mistake::kNewMoment,
     "Lion takes the direction from the new moment",
     "take the sign of beta1 * m + (1 - beta1) * g first, then update m with beta2"},
    {Mistake::kLooksNotAhead,
     "Muon orthogonalizes the new moment itself",
     "orthogonalize momentum * m + (1 - momentum) * g, where m is the new moment"},
    {Mistake::kUnscaled,
     "Muon's step does not depend on the shape of the matrix",
     "multiply the orthogonal matrix by 0.2 * sqrt(max(rows, columns))"},
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

// Trains and returns the trace. Ranks may report different results.
Trace trace_of(Subject& subject, const ParallelBackend& backend, const RunSpec& spec) {
  RunHooks hooks;
  hooks.ranks_may_differ = true;
  return train(subject, backend, spec, hooks);
}

// Returns whether every element of the gradient of the first step is that of some rank's own batch.
// The state is that after one step without clipping.
bool is_not_reduced(Subject& subject, const RunSpec& spec, const State& state) {
  const int32_t ranks = spec.degrees[YOKE_DP_REPLICATE] * spec.degrees[YOKE_DP_SHARD];
  const std::vector<std::string> moments = spec.moments();
  if (ranks < 2 || moments.empty()) return false;
  const double factor = spec.gradient_factor();
  const int32_t micro = spec.micro_batch > 0 ? spec.micro_batch : spec.global_batch / ranks;
  std::vector<State> own;
  for (int32_t r = 0; r < ranks; ++r) {
    Batch batch({spec.global_batch, micro, r, ranks, spec.targets}, 1);
    own.push_back(reference_gradient(subject, spec.model, batch.batch()));
  }
  const double bound = 10 * std::max(bounds_of(spec.model.dtype).state, 1e-9);
  for (const auto& [key, gradient] : own[0]) {
    const WholeTensor& moment = state.at(key.substr(0, key.rfind('/') + 1) + moments[0]);
    double scale = 1e-12;
    for (int64_t i = 0; i < gradient.count(); ++i)
      scale = std::max(scale, std::fabs(gradient.at(i)));
    for (int64_t i = 0; i < gradient.count(); ++i) {
      const bool found = std::any_of(own.begin(), own.end(), [&](const State& of_rank) {
        return std::fabs(factor * moment.at(i) - of_rank.at(key).at(i)) <= bound * scale;
      });
      if (!found) return false;
    }
  }
  return true;
}

// Describes how the first moments of a step without clipping differ from those of the reference.
Diagnosis describe(const RunSpec& spec, const State& state, const State& reference) {
  const std::vector<std::string> moments = spec.moments();
  const Bounds bounds = bounds_of(spec.model.dtype);
  if (moments.empty()) return {};
  if (state_difference(state, reference, bounds).empty())
    return {"; without clipping the numbers are right",
            "compute the norm over all trainable parameters, after the full reduction"};
  std::string wrong;
  double largest = 0, rounded = 1;
  for (const auto& [key, expected] : reference) {
    if (!key.ends_with("/" + moments.front()) || state.count(key) == 0) continue;
    const Distance d = distance(state.at(key), expected);
    if (d.largest > std::max(bounds.state, bounds.whole))
      wrong += (wrong.empty() ? "" : ", ") + key.substr(0, key.rfind('/'));
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
  return {"; wrong gradients: " + wrong, ""};
}

// Finds the mistake in a run whose last step is the first wrong one.
Diagnosis diagnose_step(Subject& subject,
                        const ParallelBackend& backend,
                        RunSpec spec,
                        const Trace& trace) {
  const Bounds bounds = bounds_of(spec.model.dtype);
  const double norm = trace.norm.back();
  const State right = reference_trace(subject, spec).state;
  const bool state_is_right = state_difference(trace.state, right, bounds).empty();
  for (const Known& known : kKnown) {
    const Trace mistaken = reference_trace(subject, spec, {nullptr, 1, known.mistake});
    const bool is_norm = known.mistake == Mistake::kNormBeforeSum && spec.world() > 1 &&
                         std::fabs(norm - mistaken.norm.back()) <= bounds.norm * norm;
    const bool is_state =
        !state_is_right && state_difference(trace.state, mistaken.state, bounds).empty();
    if (is_norm || is_state) return {concat("; these are the numbers if ", known.name), known.fix};
  }
  if (state_is_right) return {"; the state is right, only what the step reports is wrong", ""};
  spec.clip = 0;
  const State state = standard_kinds(trace_of(subject, backend, spec).state);
  if (spec.steps == 1 && is_not_reduced(subject, spec, state))
    return {concat("; these are the numbers if ", kKnown[0].name), kKnown[0].fix};
  return describe(spec, state, reference_trace(subject, spec).state);
}

}  // namespace

Diagnosis diagnose(Subject& subject, const ParallelBackend& backend, const RunSpec& spec) {
  if ((description_of(backend).traits & YOKE_OWN_UPDATE) != 0) return {};
  RunSpec few = spec;
  try {
    for (few.steps = 1; few.steps <= std::min(3, spec.steps); ++few.steps) {
      const Trace trace = trace_of(subject, backend, few);
      if (difference(trace, reference_trace(subject, few), bounds_of(spec.model.dtype)).empty())
        continue;
      Diagnosis found = diagnose_step(subject, backend, few, trace);
      if (few.steps > 1) found.text += concat("; step ", few.steps, " is the first wrong one");
      return found;
    }
    return {"; the first steps are right", ""};
  } catch (const std::exception&) {  // the run itself fails; that is reported elsewhere
    return {};
  }
}

}  // namespace yoke::conformance
