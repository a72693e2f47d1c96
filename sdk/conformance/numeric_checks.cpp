// N: the numbers, against the reference.
#include <cmath>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/reference.hpp"
#include "yoke/tensor.hpp"

namespace yoke::conformance {
namespace {

constexpr int kSteps = 20;

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

void expect_close(const char* what, size_t step, double value, double expected, double relative) {
  if (std::fabs(value - expected) <= relative * std::max(1e-6, std::fabs(expected))) return;
  throw Failed(std::string(what) + " of step " + std::to_string(step + 1) + " is " + number(value) +
               ", the reference has " + number(expected));
}

// Loss, norm (unless it is not known) and the state at the end.
void compare(const Trace& trace, const Trace& reference, double relative) {
  for (size_t s = 0; s < trace.loss.size(); ++s) {
    expect_close("the loss", s, trace.loss[s], reference.loss[s], relative);
    if (!std::isnan(trace.norm[s]))
      expect_close("grad_norm", s, trace.norm[s], reference.norm[s], 10 * relative);
  }
  const std::string off = difference(standard_kinds(trace.state), reference.state, relative);
  if (!off.empty()) throw Failed("after " + std::to_string(trace.loss.size()) + " steps " + off);
}

// Trains as the spec says and compares with the reference. A layout is named where it fails.
void expect_reference(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  if (spec.degrees[YOKE_DP_REPLICATE] > 1 && updates_locally(b)) return;
  try {
    compare(train(subject, b, spec), reference_trace(subject, spec), tolerance(spec.model.dtype));
  } catch (const Failed& e) {
    throw Failed("with " + layout_text(spec) + ": " + e.what());
  }
}

std::string labels(const std::vector<RunSpec>& specs) {
  std::string text;
  for (const RunSpec& spec : specs) text += (text.empty() ? "" : "; ") + layout_text(spec);
  return text;
}

std::string one_rank(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = single_rank(b, kSteps);
  expect_reference(subject, b, spec);
  spec.model.kind = ModelSpec::kSequence;
  expect_reference(subject, b, spec);
  return "";
}

std::string each_axis(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = two_ranks(subject, b);
  for (RunSpec spec : specs) {
    spec.steps = kSteps;
    spec.model.kind = ModelSpec::kSequence;
    expect_reference(subject, b, spec);
  }
  return labels(specs);
}

std::string combinations(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = four_ranks(subject, b);
  for (RunSpec spec : specs) {
    spec.steps = kSteps;
    expect_reference(subject, b, spec);
  }
  return labels(specs);
}

std::string every_dtype(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::string tried;
  for (const int32_t dtype : declared_dtypes(subject, b)) {
    for (RunSpec spec : small_layouts(subject, b)) {
      if (updates_locally(b) && spec.degrees[YOKE_DP_REPLICATE] > 1) continue;
      spec.model.dtype = dtype;
      const Trace trace = train(subject, b, spec), reference = reference_trace(subject, spec);
      for (size_t s = 0; s < trace.loss.size(); ++s)
        expect_close(dtype_name(spec.model.dtype),
                     s,
                     trace.loss[s],
                     reference.loss[s],
                     tolerance(spec.model.dtype));
    }
    tried += (tried.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  }
  return tried;
}

std::string uneven_weights(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (RunSpec spec : small_layouts(subject, b)) {
    spec.uneven = true;
    spec.micro_batch = 2;
    expect_reference(subject, b, spec);
  }
  return "";
}

std::string accumulation(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (RunSpec spec : small_layouts(subject, b)) {
    for (const int32_t micro : {1, 2}) {
      spec.micro_batch = micro;
      expect_reference(subject, b, spec);
    }
  }
  return "";
}

std::string odd_sizes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : two_data_ranks(subject, b)) expect_reference(subject, b, spec);
  return "";
}

std::string tied_and_frozen(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (RunSpec spec : small_layouts(subject, b)) {
    for (const bool tied : {true, false}) {
      spec.model.tied = tied;
      spec.micro_batch = 4;
      expect_reference(subject, b, spec);
    }
  }
  return "";
}

// What may be refused must be refused by everybody, with a reason.
bool refuses(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  std::vector<int32_t> codes(spec.world());
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    Batch batch(instance.split(false), 1);
    int32_t& code = codes[instance.host->rank] = instance.step(batch, 1, 0.01);
    if (code == YOKE_OK || (code == YOKE_INVALID_ARGUMENT && instance.err.text[0] != '\0')) return;
    throw Failed("with " + layout_text(spec) + ", step returned " + std::to_string(code) + " ('" +
                 instance.err.text + "'); allowed: success, or YOKE_INVALID_ARGUMENT with a text");
  });
  for (const int32_t code : codes)
    if (code != codes[0])
      throw Failed("with " + layout_text(spec) + ", some ranks refuse it and others do not");
  return codes[0] != YOKE_OK;
}

std::string no_influence(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::string refused;
  for (RunSpec spec : small_layouts(subject, b)) {
    spec.model.unused = true;
    if (refuses(subject, b, spec)) {
      refused += (refused.empty() ? "refused: " : ", ") + layout_text(spec);
    } else {
      expect_reference(subject, b, spec);
    }
  }
  return refused;
}

std::string clipping(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (RunSpec spec : small_layouts(subject, b)) {
    for (const double clip : {0.0, 0.01, 100.0}) {
      spec.clip = clip;
      expect_reference(subject, b, spec);
    }
  }
  return "";
}

std::string decay(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = single_rank(b);
  for (const double weight_decay : {0.0, 0.5}) {
    spec.weight_decay = weight_decay;
    for (const bool matrices : {false, true}) {
      spec.model.decay_matrices = matrices;
      expect_reference(subject, b, spec);
    }
  }
  return "";
}

std::string other_optimizers(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = single_rank(b);
  spec.kind = YOKE_SGD;
  std::string accepted;
  for (const double momentum : {0.0, 0.9}) {
    spec.momentum = momentum;
    Planned planned(subject, b, spec);
    if (planned.ask() != YOKE_OK || !planned.refusals.empty()) continue;  // C32 judges refusals
    expect_reference(subject, b, spec);
    accepted += (accepted.empty() ? "sgd with momentum " : ", ") + number(momentum);
  }
  return accepted.empty() ? "it refuses sgd" : accepted;
}

std::string every_option(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::string tried;
  std::vector<RunSpec> specs = two_ranks(subject, b);
  specs.push_back(single_rank(b));
  for (const RunSpec& spec : specs) {
    for (const RunSpec& other : variants(subject, b, spec)) expect_reference(subject, b, other);
    tried += (tried.empty() ? "" : "; ") + degrees_text(spec.degrees) + ": " +
             std::to_string(variants(subject, b, spec).size()) + " values";
  }
  return tried;
}

constexpr Check kRows[] = {
    {"N1",
     "one rank gives the right numbers",
     "20 steps of AdamW with decay and clipping on both models: loss, norm, parameters and moments "
     "within 1e-9 of the reference in fp64 (2e-4 in fp32 if that is the best it has).",
     "compare the update with the formulas at YokeOptimizer: decay first, bias correction by the "
     "number of the step, the norm before clipping",
     one_rank},
    {"N2",
     "so do two ranks along each axis",
     "The same on two ranks along each declared axis alone; results are the same on every rank.",
     "sum gradients over data ranks (and cp) once; loss_grad is 1 / token_weight of the whole "
     "batch",
     each_axis},
    {"N3",
     "so do four ranks",
     "The same on four ranks along each declared axis, and 2 x 2 along each pair that plan "
     "accepts.",
     "look at the pair that is named: gradients summed over both axes, moments sharded over the "
     "right one",
     combinations,
     true},
    {"N4",
     "every declared dtype trains",
     "6 steps in each declared dtype on one rank and on two along each data axis: losses within "
     "2e-4 (fp32) and 5e-2 (bf16) of the fp64 reference.",
     "keep an fp32 master copy for bf16, and reduce in reduce_dtype",
     every_dtype},
    {"N5",
     "a mean over targets, not of means",
     "Data ranks and micro-batches with different numbers of targets.",
     "give the last block loss_grad = 1 / batch->token_weight, and sum",
     uneven_weights},
    {"N6",
     "micro-batches add up",
     "The batch in micro-batches of 1 and of 2 sequences gives the numbers of one big batch.",
     "add gradients over micro-batches, reduce and update once",
     accumulation},
    {"N7",
     "sizes need not divide",
     "A model with 5, 7 and 11 in its shapes and a scalar, on two ranks along each data axis.",
     "pad flat buffers, or let the last rank hold less",
     odd_sizes},
    {"N8",
     "tied and frozen parameters",
     "One parameter stands in two blocks (and not), one is frozen.",
     "add the gradients of every block of a tied parameter; update nothing that is not trainable",
     tied_and_frozen},
    {"N9",
     "clipping is global",
     "Bounds far below the norm, above it, and 0 (off), on one rank and on two along each data "
     "axis.",
     "take the norm over all trainable parameters after the full reduction, each counted once",
     clipping},
    {"N10",
     "decay where it applies",
     "Weight decay 0 and 0.5, for all parameters and for matrices only.",
     "look at YokeParameter.decay, and decay before the rest of the update",
     decay},
    {"N15",
     "options do not change the numbers",
     "Every other value of every option (both bools, each choice, 1 to 3) that plan accepts, on "
     "one and two ranks, against the reference.",
     "mend the option that is named, or refuse its value in plan",
     every_option,
     true},
    {"N20",
     "parameters without influence",
     "The loss does not depend on one parameter, whose gradient is then zero: the numbers of the "
     "reference, or every rank refuses the step with YOKE_INVALID_ARGUMENT and a reason.",
     "take a gradient that never comes for zero, or say what to change",
     no_influence},
    {"N19",
     "other optimizers",
     "SGD without and with momentum, if plan accepts them.",
     "b = momentum * b + g, p = p - lr * b; the first b is g",
     other_optimizers},
};

}  // namespace

void add_numeric_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
