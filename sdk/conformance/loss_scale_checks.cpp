// Check N21: the factor of the loss in fp16. The norm and the parameters must not depend on it, and
// gradients that overflow because of it must change nothing.
#include <algorithm>
#include <cmath>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr double kScales[] = {64, 1024};
constexpr double kOverflowing = 0x1p60;  // infinite in fp16, in any product with a gradient

void expect(bool holds, const RunSpec& spec, const std::string& text) {
  if (!holds) throw Failed("with " + layout_text(spec) + " in fp16, " + text);
}

void check_result(const Instance& instance, const RunSpec& spec, bool skipped) {
  const YokeStepResult& r = instance.result;
  expect(r.loss_scale == instance.loss_scale,
         spec,
         concat("loss_scale of the result is ", r.loss_scale, ", but the step was given ") +
             concat(instance.loss_scale));
  expect(r.skipped == (skipped ? 1 : 0),
         spec,
         concat("skipped is ", r.skipped, " with the norm ", r.grad_norm));
  expect(std::isinf(r.grad_norm) == skipped,
         spec,
         concat("grad_norm is ", r.grad_norm, " with the loss scale ", instance.loss_scale));
}

// Trains with a scale and, before each step, lets the same step overflow.
void train_scaled(Subject& subject, const ParallelBackend& b, const RunSpec& spec, double scale) {
  const Trace reference = Numbers(subject, b).expected(spec);
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    for (int64_t step = 1; step <= spec.steps; ++step) {
      Batch batch(instance.split(), step);
      instance.loss_scale = kOverflowing;
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
      check_result(instance, spec, true);
      instance.loss_scale = scale;
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
      check_result(instance, spec, false);
      const double norm = instance.result.grad_norm, expected = reference.norm[step - 1];
      expect(std::fabs(norm - expected) <= bounds_of(YOKE_F16).loss * expected,
             spec,
             concat("the norm of step ", step, " with the loss scale ", scale, " is ", norm) +
                 concat(", but the reference has ", expected));
      const double loss = instance.result.loss_sum / instance.result.loss_weight;
      const double wanted = reference.loss[step - 1];
      expect(std::fabs(loss - wanted) <= bounds_of(YOKE_F16).loss * std::fabs(wanted),
             spec,
             concat("the loss of step ", step, " after steps that overflowed is ", loss) +
                 concat(", but the reference has ", wanted));
    }
  });
}

std::string scaled_loss(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const std::vector<int32_t> dtypes = declared_dtypes(subject, b);
  if (std::find(dtypes.begin(), dtypes.end(), YOKE_F16) == dtypes.end())
    throw NotRun("it declares no fp16");
  if (b.abi_minor < 1) throw NotRun("version 1.0 has no loss scale, so the host refuses fp16");
  const Numbers numbers(subject, b);
  for (RunSpec spec : small_layouts(subject, b)) {
    if (!numbers.predicts(spec)) continue;
    spec.model.dtype = YOKE_F16;
    for (const double scale : kScales) train_scaled(subject, b, spec, scale);
  }
  return "";
}

constexpr Check kRows[] = {
    {"N21",
     "the loss scale of fp16 is removed again",
     "The model trains for 6 steps in fp16 with the loss scales 64 and 1024, on one rank and on "
     "two "
     "along each data axis. Before each step, the same step is given a scale with which it "
     "overflows: every rank reports skipped = 1 and keeps its state. Losses and norms are within "
     "5e-2 of the fp64 reference.",
     "multiply loss_grad by args->loss_scale, divide the reduced gradients by it before norm, clip "
     "and update, and report it (yoke/optimizer.h)",
     scaled_loss},
};

}  // namespace

void add_loss_scale_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
