// Checks C30 and C43: what a backend reports about memory, traffic and steps.
#include <algorithm>
#include <cmath>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Throws Failed unless the number of bytes is -1 (unknown) or plausible: at least `least`, and at
// most a few times as much as `usual`.
void check_bytes(const char* what, int64_t bytes, int64_t least, int64_t usual) {
  constexpr int64_t kFactor = 8, kConstant = 1 << 16;
  if (bytes == -1 || (bytes >= least && bytes <= kFactor * usual + kConstant)) return;
  throw Failed(
      concat(what, " is ", bytes, "; allowed: ", least, " to ") +
      concat(kFactor * usual + kConstant, " for this model on one rank, or -1 for unknown"));
}

// Returns the bytes of a parameter in the dtype of its master copy.
int64_t bytes_of(const YokeParameter& p) {
  return (p.dtype == YOKE_F64 ? 8 : 4) * numel(p.shape, p.ndim);
}

// Returns the bytes of all parameters of the model, or of the trainable ones.
int64_t bytes_of(const YokeModelSummary& model, bool trainable) {
  int64_t bytes = 0;
  for (uint64_t i = 0; i < model.num_params; ++i) {
    if (!trainable || model.params[i]->trainable) bytes += bytes_of(*model.params[i]);
  }
  return bytes;
}

int64_t bytes_of_moments(const YokeModelSummary& model, const RunSpec& spec) {
  int64_t bytes = 0;
  for (uint64_t i = 0; i < model.num_params; ++i)
    bytes += static_cast<int64_t>(spec.moments_of(model, i).size()) * bytes_of(*model.params[i]);
  return bytes;
}

std::string plausible_results(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = short_run(subject, b);
  spec.model.large = true;
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    const int64_t all = bytes_of(*model.model().summary, false);
    const int64_t trainable = bytes_of(*model.model().summary, true);
    const bool own = (description_of(b).traits & YOKE_OWN_UPDATE) != 0;
    const int64_t moments = bytes_of_moments(*model.model().summary, spec);
    check_bytes("param_bytes", instance.wrapped.param_bytes, all, all);
    check_bytes("grad_bytes", instance.wrapped.grad_bytes, trainable, trainable);
    check_bytes("optimizer_bytes",
                instance.wrapped.optimizer_bytes,
                own ? 0 : moments,
                std::max(moments, trainable));
    for (const int64_t bytes : instance.wrapped.axis_bytes) check_bytes("axis_bytes", bytes, 0, 0);
    Batch batch(instance.split(), 1);
    for (const uint32_t flags : {uint32_t{YOKE_STEP_FORWARD_ONLY}, 0u}) {
      // An evaluation before the first update has the number 0.
      instance.must(instance.step(batch, flags != 0 ? 0 : 1, 0.01, flags), "step");
      const YokeStepResult& r = instance.result;
      if (!std::isfinite(r.loss_sum) || r.loss_weight != batch.batch().token_weight)
        throw Failed(concat("loss_sum is ",
                            r.loss_sum,
                            " and loss_weight is ",
                            r.loss_weight,
                            "; expected a finite loss and the ",
                            batch.batch().token_weight,
                            " targets of the batch"));
      const bool known = !std::isnan(r.grad_norm);
      if (flags != 0 ? known : known && !(r.grad_norm > 0))
        throw Failed(
            concat("grad_norm is ",
                   r.grad_norm,
                   flags != 0 ? " after YOKE_STEP_FORWARD_ONLY, which has no gradient; expected NaN"
                              : " after a step; expected a number above 0, or NaN"));
    }
  });
  return "";
}

// Throws Failed unless the reported traffic along an axis is that of one step, up to a few scalars.
void check_traffic(const char* axis, int64_t reported, int64_t counted, int64_t operations) {
  const int64_t slack = counted / 8 + 64 * operations;
  if (std::abs(reported - counted) <= slack) return;
  throw Failed(
      concat("axis_bytes of ", axis, " is ", reported, ", but the collectives of a step ") +
          concat("had ", counted, " bytes"),
      {root_of(2), ""});
}

std::string traffic(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto layouts = two_ranks(subject, b);
  require_layouts(layouts, subject, b, 2);
  std::string compared;
  for (RunSpec spec : layouts) {
    spec.micro_batch = 0;
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      InstrumentedHost& host = instance.instrument_host();
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      std::array<int64_t, YOKE_NUM_AXES> before;
      for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) before[axis] = host.axis_bytes[axis];
      const int64_t operations = host.collectives;
      Batch batch(instance.split(), 1);
      instance.must(instance.step(batch, 1, 0.01), "step");
      if (instance.host->rank != 0 || host.collectives == operations || host.uses_native) return;
      for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
        const int64_t reported = instance.wrapped.axis_bytes[axis];
        if (spec.degrees[axis] == 1 || reported <= 0) continue;  // unknown
        check_traffic(yoke_axis_name(axis),
                      reported,
                      host.axis_bytes[axis] - before[axis],
                      host.collectives - operations);
        compared += (compared.empty() ? "" : ", ") + std::string(yoke_axis_name(axis));
      }
    });
  }
  if (compared.empty())
    throw NotRun(
        "it reports no traffic (axis_bytes is 0 or -1 for every axis), or does not communicate "
        "through yoke.collectives/1");
  return compared;
}

constexpr Check kRows[] = {
    {"C30",
     "results are plausible or unknown",
     "Byte counts of wrap_model are -1, or at least what one rank needs and at most about 8 times "
     "as "
     "much. A step reports a finite "
     "loss, the number of its targets, and a norm that is above 0 or NaN. With "
     "YOKE_STEP_FORWARD_ONLY the norm is NaN.",
     "write -1 or NaN for values that you do not know",
     plausible_results},
    {"C43",
     "axis_bytes are those of the collectives",
     "On two ranks along each declared axis, the collectives of a step carry axis_bytes, within an "
     "eighth and a few scalars. An axis with 0 or -1 is left out.",
     "count the larger side of each collective, or report 0 for unknown",
     traffic},
};

}  // namespace

void add_cost_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
