// Checks N1 to N10, N15, N19 and N20: the numbers of a run compared with those of the reference.
//
// All of them work the same way: a run of the backend and the reference with the same model,
// batches and optimizer must agree in every loss, every norm and the final state. The checks differ
// only in the spec of the run. fp64 is used where the backend has it: rounding errors are then so
// small that any wrong formula shows.
#include <cmath>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/reference.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int kSteps = 20;

std::string number(double value) {
  return string_printf("%.12g", value);
}

void expect_close(const char* what, size_t step, double value, double expected, double relative) {
  if (std::fabs(value - expected) <= relative * std::max(1e-6, std::fabs(expected))) return;
  const std::string is = number(value), wanted = number(expected);
  throw Failed(concat(what, " of step ", step + 1, " is ", is, ", but the reference has ", wanted));
}

// Compares the losses, the norms that are known, and the final state.
void compare(const Trace& trace, const Trace& reference, double relative) {
  for (size_t s = 0; s < trace.loss.size(); ++s) {
    expect_close("the loss", s, trace.loss[s], reference.loss[s], relative);
    if (!std::isnan(trace.norm[s]))
      expect_close("grad_norm", s, trace.norm[s], reference.norm[s], 10 * relative);
  }
  const std::string off = difference(standard_kinds(trace.state), reference.state, relative);
  if (!off.empty()) throw Failed(concat("after ", trace.loss.size(), " steps, ", off));
}

// Trains with this spec and compares with the reference. Skips layouts in which ranks update their
// parameters independently. Throws Failed with the name of the layout.
void expect_reference(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  if (spec.degrees[YOKE_DP_REPLICATE] > 1 && updates_locally(b)) return;
  try {
    compare(train(subject, b, spec), reference_trace(subject, spec), tolerance(spec.model.dtype));
  } catch (const Failed& e) {
    throw Failed(concat("with ", layout_text(spec), ": ", e.what()));
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

// Returns whether step refuses this model. Throws Failed unless all ranks return the same code and
// a refusal has an error text.
bool refuses(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  std::vector<int32_t> codes(spec.world());
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    Batch batch(instance.split(false), 1);
    int32_t& code = codes[instance.host->rank] = instance.step(batch, 1, 0.01);
    if (code == YOKE_OK || (code == YOKE_INVALID_ARGUMENT && instance.err.text[0] != '\0')) return;
    throw Failed(concat("with ",
                        layout_text(spec),
                        ", step returned ",
                        code,
                        " ('",
                        instance.err.text,
                        "'); allowed: success, or YOKE_INVALID_ARGUMENT with a text"));
  });
  for (const int32_t code : codes)
    if (code != codes[0])
      throw Failed("with " + layout_text(spec) + ", some ranks refuse the step and others do not");
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
    if (planned.ask() != YOKE_OK || !planned.refusals.empty()) continue;  // C32 checks refusals
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
    const char* separator = tried.empty() ? "" : "; ";
    const size_t values = variants(subject, b, spec).size();
    tried += concat(separator, degrees_text(spec.degrees), ": ", values, " values");
  }
  return tried;
}

constexpr Check kRows[] = {
    {"N1",
     "one rank computes the right numbers",
     "Both test models train for 20 steps with AdamW, weight decay and clipping. Loss, norm, "
     "parameters and moments are within 1e-9 of the reference in fp64, or within 2e-4 in fp32 if "
     "the backend has no fp64.",
     "compare your update with the formulas at YokeOptimizer: weight decay first, bias correction "
     "by the step number, the norm before clipping",
     one_rank},
    {"N2",
     "two ranks along each axis compute the right numbers",
     "The comparison of N1 is repeated with one of the models on two ranks along each declared "
     "axis. All ranks report the same results.",
     "sum gradients over the data ranks (and cp) once; loss_grad is 1 / token_weight of the whole "
     "batch",
     each_axis},
    {"N3",
     "four ranks compute the right numbers",
     "The comparison of N1 is repeated with one of the models on four ranks along each declared "
     "axis, and on 2 x 2 ranks along each pair of axes that plan accepts.",
     "look at the pair that is named: gradients must be summed over both axes, and moments "
     "sharded over the right one",
     combinations,
     true},
    {"N4",
     "every declared dtype trains",
     "The model trains for 6 steps in each declared dtype, on one rank and on two along each data "
     "axis. Losses are within 2e-4 (fp32) or 5e-2 (bf16, fp16) of the fp64 reference.",
     "keep an fp32 master copy for bf16 and fp16, and reduce in reduce_dtype",
     every_dtype},
    {"N5",
     "the loss is a mean over targets, not a mean of means",
     "Data ranks and micro-batches have different numbers of targets, and the numbers are those "
     "of the reference.",
     "give the last block loss_grad = 1 / batch->token_weight, and sum",
     uneven_weights},
    {"N6",
     "micro-batches add up",
     "Micro-batches of 1 and of 2 sequences give the numbers of one big batch.",
     "add up gradients over micro-batches, then reduce and update once",
     accumulation},
    {"N7",
     "sizes need not be divisible",
     "A model with the sizes 5, 7 and 11 and a scalar parameter trains on two ranks along each "
     "data axis, with the numbers of the reference.",
     "pad flat buffers, or let the last rank hold less",
     odd_sizes},
    {"N8",
     "tied and frozen parameters are supported",
     "The model has a frozen parameter, and trains with and without a parameter that two blocks "
     "share.",
     "add up the gradients of all blocks for a tied parameter; update nothing that is not "
     "trainable",
     tied_and_frozen},
    {"N9",
     "clipping is global",
     "The model trains with a clip bound far below the norm, one above it, and 0 (off), on one "
     "rank and on two along each data axis.",
     "compute the norm over all trainable parameters after the full reduction, and count each of "
     "them once",
     clipping},
    {"N10",
     "weight decay applies to the right parameters",
     "The model trains with weight decay 0 and 0.5, applied to all parameters and to matrices "
     "only. The numbers are those of the reference.",
     "read YokeParameter.decay, and apply the decay before the rest of the update",
     decay},
    {"N15",
     "options do not change the numbers",
     "Each option is set to every other value that plan accepts (both values of a bool, each "
     "choice, the integers 1 to 3). The numbers on one and on two ranks are those of the "
     "reference.",
     "correct the option that is named, or refuse its value in plan",
     every_option,
     true},
    {"N20",
     "a parameter may have no influence on the loss",
     "The loss does not depend on one parameter, so its gradient is zero. The numbers are those "
     "of the reference, or every rank refuses the step with YOKE_INVALID_ARGUMENT and a text.",
     "treat a gradient that is never reported as zero, or say what to change",
     no_influence},
    {"N19",
     "other optimizers compute the right numbers",
     "The model trains with SGD, without and with momentum, if plan accepts SGD. The numbers are "
     "those of the reference.",
     "b = momentum * b + g, p = p - lr * b; the first b is g",
     other_optimizers},
};

}  // namespace

void add_numeric_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
