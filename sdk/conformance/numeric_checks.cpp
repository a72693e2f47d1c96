// Checks N1 to N10, N15, N19, N20, N23 and N24: the numbers of a run compared with the prediction,
// which for most backends is the reference.
//
// All of them work the same way: a run of the backend and the reference with the same model,
// batches and optimizer must agree in every loss, every norm and the final state. The checks differ
// only in the spec of the run. fp64 is used where the backend has it: rounding errors are then so
// small that any wrong formula shows.
#include <atomic>
#include <functional>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "sdk/conformance/precision_checks.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int kSteps = 20;

// Trains with these specs and compares. Returns the layouts. Throws NotRun if there is none.
std::string compare_all(Subject& subject,
                        const ParallelBackend& b,
                        const std::vector<RunSpec>& specs) {
  Numbers numbers(subject, b);
  for (const RunSpec& spec : specs) numbers.expect(spec);
  return numbers.compared();
}

// Returns copies of these specs, each changed in turn by each of the changes.
std::vector<RunSpec> with(const std::vector<RunSpec>& specs,
                          const std::vector<std::function<void(RunSpec&)>>& changes) {
  std::vector<RunSpec> all;
  for (const RunSpec& spec : specs) {
    for (const auto& change : changes) change(all.emplace_back(spec));
  }
  return all;
}

// With 16 bits, correct runs drift apart after a few steps.
void train_long(RunSpec& spec) {
  if (item_size(spec.model.dtype) > 2) spec.steps = kSteps;
}
void train_sequences(RunSpec& spec) {
  train_long(spec);
  spec.model.kind = ModelSpec::kSequence;
}

std::string one_rank(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  return compare_all(subject, b, with({basic_run(subject, b)}, {train_long, train_sequences}));
}

std::string each_axis(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = two_ranks(subject, b);
  require_layouts(specs, subject, b, 2);
  return compare_all(subject, b, with(specs, {train_sequences}));
}

std::string three(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = three_ranks(subject, b);
  require_layouts(specs, subject, b, 3);
  return compare_all(subject, b, specs);
}

std::string combinations(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = four_ranks(subject, b);
  require_layouts(specs, subject, b, 4);
  return compare_all(subject, b, with(specs, {train_long}));
}

std::string processes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = two_ranks(subject, b);
  require_layouts(specs, subject, b, 2);
  std::vector<Trace> traces;  // the reference starts threads, so it comes last
  for (const RunSpec& spec : specs) {
    try {
      traces.push_back(train_in_processes(subject, b, spec));
    } catch (const Failed& e) {
      throw with_layout(spec, Failed(concat("ranks as processes: ", e.what()), e.cause()));
    }
  }
  Numbers numbers(subject, b);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!numbers.predicts(specs[i])) continue;
    try {
      numbers.expect(specs[i], traces[i]);
    } catch (const Failed& e) {
      throw with_layout(specs[i], Failed(concat("ranks as processes: ", e.what()), e.cause()));
    }
  }
  return concat(specs.size(), " layouts");
}

std::string every_dtype(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::string tried;
  Numbers numbers(subject, b);
  for (const int32_t dtype : declared_dtypes(subject, b)) {
    for (RunSpec spec : small_layouts(subject, b)) {
      spec.model.dtype = dtype;
      numbers.expect(spec);
      expect_gradients(subject, b, spec);
    }
    tried += (tried.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  }
  numbers.compared();
  return tried;
}

std::string uneven_weights(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto uneven = [](RunSpec& spec) {
    spec.targets = Targets::kUneven;
    spec.micro_batch = 2;
  };
  const auto no_targets = [](RunSpec& spec) { spec.targets = Targets::kFirstHalf; };
  return compare_all(subject, b, with(small_layouts(subject, b), {uneven, no_targets}));
}

std::string accumulation(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  return compare_all(subject,
                     b,
                     with(small_layouts(subject, b),
                          {[](RunSpec& spec) { spec.micro_batch = 1; },
                           [](RunSpec& spec) { spec.micro_batch = 2; }}));
}

std::string odd_sizes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto specs = two_data_ranks(subject, b);
  require_layouts(specs, subject, b, 2);
  const auto large = [](RunSpec& spec) {
    spec.model.large = true;
    spec.steps = 2;
  };
  return compare_all(subject, b, with(specs, {[](RunSpec&) {}, large}));
}

std::string tied_and_frozen(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const auto tied = [](RunSpec& spec) { spec.micro_batch = 4; };
  const auto not_tied = [](RunSpec& spec) {
    spec.micro_batch = 4;
    spec.model.tied = false;
  };
  return compare_all(subject, b, with(small_layouts(subject, b), {tied, not_tied}));
}

// Returns whether step refuses this model. Throws Failed unless all ranks return the same code and
// a refusal has an error text.
bool refuses(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  std::vector<int32_t> codes(spec.world());
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    Batch batch(instance.split(), 1);
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
  Numbers numbers(subject, b);
  for (RunSpec spec : small_layouts(subject, b)) {
    spec.model.unused = true;
    if (refuses(subject, b, spec)) {
      refused += (refused.empty() ? "refused: " : ", ") + layout_text(spec);
    } else {
      numbers.expect(spec);
    }
  }
  return refused.empty() ? numbers.compared() : refused;
}

std::string clipping(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::vector<std::function<void(RunSpec&)>> bounds;
  for (const double clip : {0.0, 0.01, 100.0})
    bounds.emplace_back([clip](RunSpec& spec) { spec.clip = clip; });
  return compare_all(subject, b, with(small_layouts(subject, b), bounds));
}

std::string decay(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::vector<std::function<void(RunSpec&)>> decays;
  for (const double weight_decay : {0.0, 0.5}) {
    for (const bool matrices : {false, true}) {
      decays.emplace_back([weight_decay, matrices](RunSpec& spec) {
        spec.weight_decay = weight_decay;
        spec.model.decay_matrices = matrices;
      });
    }
  }
  return compare_all(subject, b, with({basic_run(subject, b)}, decays));
}

// In 16 bits the sign of a small gradient is noise, which Lion turns into steps of full length. The
// same is true of a small singular value and Muon.
bool is_noise(const RunSpec& spec) {
  return (spec.kind == YOKE_LION || spec.kind == YOKE_MUON) && item_size(spec.model.dtype) == 2;
}

std::string other_optimizers(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec basic = basic_run(subject, b);
  std::string accepted;
  Numbers numbers(subject, b);
  for (const auto& [kind, momentum, name] : optimizers()) {
    if (kind == basic.kind && momentum == basic.momentum) continue;  // N1 to N3 train with it
    for (RunSpec spec : small_layouts(subject, b)) {
      spec.kind = kind;
      spec.momentum = momentum;
      if (is_noise(spec) || !Planned(subject, b, spec).accepts()) continue;  // C32 checks refusals
      try {
        numbers.expect(spec);
      } catch (const Failed& e) {
        throw Failed(concat(name, ": ", e.what()), e.cause());
      }
      if (spec.world() == 1) accepted += (accepted.empty() ? "" : ", ") + std::string(name);
    }
  }
  if (accepted.empty()) throw NotRun("it has one optimizer");
  return accepted;
}

bool changes_numbers(const ParallelBackend& b, const std::string& key) {
  const YokeDescription d = description_of(b);
  for (uint64_t i = 0; i < d.num_options; ++i) {
    const YokeOptionInfo& o = *d.options[i];
    if (view(o.key) == key && YOKE_HAS(YokeOptionInfo, &o, effects))
      return (o.effects & YOKE_OPTION_CHANGES_NUMBERS) != 0;
  }
  return false;
}

// Returns whether init or wrap_model refuses a run that plan has accepted. plan knows no device, so
// an option that needs one is refused later.
bool refused_later(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  std::atomic<bool> refused{false};
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    int32_t code = instance.init();
    if (code == YOKE_OK) code = instance.wrap(model.model());
    const bool refuses = code == YOKE_INVALID_ARGUMENT || code == YOKE_UNIMPLEMENTED;
    if (refuses && instance.err.text[0] != 0) refused = true;
  });
  return refused;
}

std::string every_option(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  if (description_of(b).num_options == 0) throw NotRun("it declares no option");
  Numbers numbers(subject, b);
  std::string tried;
  for (const RunSpec& spec : one_and_two_ranks(subject, b)) {
    size_t values = 0;
    for (const RunSpec& other : variants(subject, b, spec)) {
      bool same = true;
      for (const auto& [key, value] : other.options)
        if (spec.options.count(key) == 0 && changes_numbers(b, key)) same = false;
      if (!same || refused_later(subject, b, other)) continue;
      numbers.expect(other);
      ++values;
    }
    tried += concat(tried.empty() ? "" : "; ", degrees_text(spec.degrees), ": ", values, " values");
  }
  return tried;
}

constexpr Check kRows[] = {
    {"N1",
     "one rank computes the right numbers",
     "Both test models train for 20 steps with weight decay and clipping, with AdamW or, if plan "
     "refuses it, with SGD or another optimizer. Loss, norm, parameters and moments are within "
     "1e-9 of the reference in fp64. A backend without fp64 trains in fp32, within 2e-4, or for 6 "
     "steps in bf16, where losses are within 5e-2, and all parameters together within 1e-1.",
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
    {"N23",
     "three ranks compute the right numbers",
     "The comparison of N1 is repeated on three ranks along each declared axis that plan accepts, "
     "with a batch of six sequences.",
     "divide by the number of ranks wherever you may have assumed a power of two",
     three},
    {"N24",
     "ranks may be processes",
     "The comparison of N2 is repeated with ranks that are processes, which share no memory but "
     "that of the collectives.",
     "exchange data through collectives only, never through static variables",
     processes},
    {"N4",
     "every declared dtype trains",
     "The model trains for 6 steps in each declared dtype, on one rank and on two along each data "
     "axis. Losses are within 2e-4 (fp32) or 5e-2 (bf16, fp16) of the fp64 reference. The "
     "gradients of the first step are within 1e-5 in fp32, so they are not rounded to fewer bits.",
     "keep an fp32 master copy for bf16 and fp16, and reduce in reduce_dtype",
     every_dtype},
    {"N5",
     "the loss is a mean over targets, not a mean of means",
     "In one run, data ranks and micro-batches have different numbers of targets; in a second run, "
     "half of the batch has no targets. Both have the numbers of the reference.",
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
     "data axis, with the numbers of the reference. So does one with tensors of 70,000 elements.",
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
     "choice, the integers 1 to 3), but for options with YOKE_OPTION_CHANGES_NUMBERS. The numbers "
     "on one and on two ranks are those of the reference.",
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
     "The model trains with every optimizer that plan accepts, but for that of N1, on one rank and "
     "on two along each data axis: AdamW and Adam with and without bias correction, Lion and Muon "
     "(not in 16 bits), SGD with and without momentum. The numbers are those of the reference.",
     "compare your update with the formulas at YokeOptimizer; yoke/optimizer.h has them all",
     other_optimizers},
};

}  // namespace

void add_numeric_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
