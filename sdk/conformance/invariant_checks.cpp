// Checks N11 to N13 and N17: steps that must change nothing, and runs and replicas that must be
// equal.
#include <cmath>
#include <cstring>
#include <limits>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

enum Part { kAll, kParams };

// Returns whether the ranks of this layout update independently between two averages.
bool updates_alone(const ParallelBackend& b, const RunSpec& spec) {
  return (description_of(b).traits & YOKE_LOCAL_UPDATES) != 0 &&
         spec.degrees[YOKE_DP_REPLICATE] > 1;
}

State part_of(State state, Part part) {
  std::erase_if(
      state, [&](const auto& item) { return part == kParams && !item.first.ends_with("/param"); });
  return state;
}

// Calls `body` on every rank after two steps. Throws Failed if it changes a bit of the state.
void expect_unchanged(Subject& subject,
                      const ParallelBackend& b,
                      const RunSpec& spec,
                      const char* what,
                      Part part,
                      const std::function<void(Instance&, TestModel&)>& body) {
  std::vector<std::vector<Piece>> before(spec.world()), after(spec.world());
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    for (const int64_t step : {1, 2}) {
      Batch batch(instance.split(), step);
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
    }
    before[instance.host->rank] = instance.save();
    body(instance, model);
    after[instance.host->rank] = instance.save();
  });
  const std::string off =
      difference(part_of(assemble(after), part), part_of(assemble(before), part), 0);
  if (!off.empty()) throw Failed(concat("with ", layout_text(spec), ", after ", what, ", ", off));
}

// Throws Failed unless the loss of an evaluation after two steps is the expected one, which the
// third step of a run computes before it updates the parameters.
void check_evaluation(const Instance& instance, const RunSpec& spec, double expected) {
  const double loss = instance.result.loss_sum / instance.result.loss_weight;
  if (std::fabs(loss - expected) <= bounds_of(spec.model.dtype).loss * std::fabs(expected)) return;
  throw Failed(
      concat("with ", layout_text(spec)) +
          string_printf(
              ", the loss of YOKE_STEP_FORWARD_ONLY is %.12g, expected %.12g", loss, expected),
      {root_of(spec.world()), ""});
}

std::string nothing_changes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const Numbers numbers(subject, b);
  for (const RunSpec& spec : one_and_two_ranks(subject, b)) {
    const bool known = numbers.predicts(spec);
    const double expected = known ? numbers.expected(spec).loss[2] : 0;
    const auto evaluate = [&](Instance& instance, TestModel&) {
      Batch batch(instance.split(), 3);
      instance.must(instance.step(batch, 2, 0.1, YOKE_STEP_FORWARD_ONLY), "step");
      if (known) check_evaluation(instance, spec, expected);
    };
    expect_unchanged(subject, b, spec, "YOKE_STEP_FORWARD_ONLY", kAll, evaluate);
    expect_unchanged(
        subject, b, spec, "a step with lr = 0", kParams, [](Instance& instance, TestModel&) {
          Batch batch(instance.split(), 3);
          instance.must(instance.step(batch, 3, 0), "step");
        });
  }
  return "";
}

// The ways in which the gradient of a step becomes infinite.
enum class Infinite { kLossOfLastRank, kOneElement };
constexpr std::pair<Infinite, const char*> kInfinite[] = {
    {Infinite::kLossOfLastRank, "a loss of inf on the last rank"},
    {Infinite::kOneElement, "one element of one gradient that is inf"}};

// Makes a step whose gradient is infinite.
void infinite_step(Instance& instance, TestModel& model, const RunSpec& spec, Infinite how) {
  FaultInjection& injection = model.fault_injection();
  if (how == Infinite::kOneElement) {
    injection.infinite_element = true;
  } else if (instance.host->rank == spec.world() - 1) {
    injection.loss_factor = std::numeric_limits<double>::infinity();
  }
  Batch batch(instance.split(), 3);
  instance.must(instance.step(batch, 3, spec.lr(3)), "step");
  injection = {};
}

void check_skipped(const Instance& instance, const std::string& where) {
  const std::string start = concat(where, ", the result of rank ", instance.host->rank, " has ");
  if (instance.result.grad_norm != std::numeric_limits<double>::infinity())
    throw Failed(concat(start, "grad_norm ", instance.result.grad_norm, ", expected inf"),
                 {root_of(instance.host->world_size), ""});
  if (instance.backend.abi_minor >= 1 && instance.result.skipped != 1)
    throw Failed(concat(start, "skipped = ", instance.result.skipped, ", expected 1"));
}

// Trains with a step in the middle that is skipped. The rest must be as without it.
void expect_skip_leaves_no_trace(Subject& subject, const ParallelBackend& b, const RunSpec& spec) {
  const Trace usual = train(subject, b, spec);
  std::vector<std::vector<Piece>> pieces(spec.world());
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    for (int64_t step = 1; step <= spec.steps; ++step) {
      if (step == 3) infinite_step(instance, model, spec, Infinite::kLossOfLastRank);
      Batch batch(instance.split(), step);
      instance.must(instance.step(batch, step, spec.lr(step)), "step");
    }
    pieces[instance.host->rank] = instance.save();
  });
  const std::string off = difference(assemble(pieces), usual.state, 0);
  if (!off.empty())
    throw Failed("with " + layout_text(spec) + ", after a step that was skipped and " +
                     concat(spec.steps - 2, " more, ", off),
                 {root_of(spec.world()), ""});
}

std::string not_finite(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : small_layouts(subject, b)) {
    if (updates_alone(b, spec)) continue;
    for (const auto& [how, what] : kInfinite) {
      const auto skipped = [&, how = how, what = what](Instance& instance, TestModel& model) {
        infinite_step(instance, model, spec, how);
        check_skipped(instance, concat("with ", layout_text(spec), " and ", what));
      };
      expect_unchanged(subject, b, spec, "a step whose gradient norm is not finite", kAll, skipped);
    }
    expect_skip_leaves_no_trace(subject, b, spec);
  }
  return "";
}

// ---- Equal runs and replicas ----

std::string twice_the_same(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : one_and_two_ranks(subject, b)) {
    const Trace first = train(subject, b, spec), second = train(subject, b, spec);
    const std::string off = difference(second.state, first.state, 0);
    if (!off.empty())
      throw Failed(concat("with ", layout_text(spec), ", in the second of two equal runs, ", off));
  }
  return "";
}

// Compares the pieces with replica > 0 with the pieces that a checkpoint would contain.
std::string equal_replicas(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  size_t compared = 0;
  const auto layouts = two_ranks(subject, b);
  require_layouts(layouts, subject, b, 2);
  for (const RunSpec& spec : layouts) {
    if (updates_alone(b, spec)) continue;
    std::vector<std::vector<Piece>> pieces(spec.world());
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      for (int64_t step = 1; step <= spec.steps; ++step) {
        Batch batch(instance.split(), step);
        instance.must(instance.step(batch, step, spec.lr(step)), "step");
      }
      pieces[instance.host->rank] = instance.save();
    });
    const State written = assemble(pieces);
    for (int32_t rank = 0; rank < spec.world(); ++rank) {
      for (const Piece& p : pieces[rank]) {
        if (p.replica == 0) continue;
        ++compared;
        std::vector<char> expected(p.bytes.size());
        const WholeTensor& whole = written.at(p.key);
        const int64_t item = item_size(p.dtype);
        for (int64_t i = 0; i < p.count; ++i)
          std::memcpy(&expected[i * item],
                      &whole.bytes[(p.begin + i / p.run * p.stride + i % p.run) * item],
                      item);
        if (expected != p.bytes)
          throw Failed(concat("with ", layout_text(spec), ", ", p.key, " of rank ", rank) +
                           " differs from the copy that is written",
                       {"N2", ""});
      }
    }
  }
  if (compared == 0)
    throw NotRun(
        "no pieces have to be equal: none has replica > 0 along an axis of replicas, or its "
        "replicas may differ between two averages (YOKE_LOCAL_UPDATES)");
  return concat(compared, " copies compared");
}

constexpr Check kRows[] = {
    {"N11",
     "evaluation and lr = 0 change nothing",
     "On one rank and on two along each declared axis, a step with YOKE_STEP_FORWARD_ONLY reports "
     "the loss of the reference and leaves the whole state unchanged, bit for bit. A step with lr "
     "= "
     "0 leaves the parameters unchanged.",
     "skip backward and update if the flag is set; multiply every change by lr",
     nothing_changes},
    {"N12",
     "a norm that is not finite updates nothing",
     "The loss is infinite on the last rank, or one element of one gradient is. Every rank reports "
     "grad_norm = +infinity and, since version 1.1, skipped = 1, and keeps its state, including "
     "the "
     "step number. The steps after it give the bits of a run without it.",
     "test the norm of the whole gradient, which is the same on every rank, before the update; "
     "count "
     "no step that is skipped",
     not_finite},
    {"N13",
     "equal runs are equal",
     "Every run is repeated, on one rank and on two, and gives the same bits.",
     "add up in an order that does not depend on timing",
     twice_the_same},
    {"N17",
     "replicas are equal",
     "After 6 steps on two ranks, every piece with replica > 0 has the same bits as the piece that "
     "is written.",
     "update replicas from the same reduced gradient in the same order",
     equal_replicas},
};

}  // namespace

void add_invariant_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
