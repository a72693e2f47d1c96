// Checks N11 to N13 and N17: steps that must change nothing, and runs and replicas that must be
// equal.
#include <cmath>
#include <cstring>
#include <limits>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/reference.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

enum Part { kAll, kParams };

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
      Batch batch(instance.split(false), step);
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

// Throws Failed unless the loss of an evaluation after two steps is that of the reference, which
// its third step computes before it updates the parameters.
void check_evaluation(const Instance& instance, const RunSpec& spec, double expected) {
  const double loss = instance.result.loss_sum / instance.result.loss_weight;
  if (std::fabs(loss - expected) <= tolerance(spec.model.dtype) * std::fabs(expected)) return;
  throw Failed(concat("with ", layout_text(spec)) +
               string_printf(", the loss of YOKE_STEP_FORWARD_ONLY is %.12g, but the reference has "
                             "%.12g",
                             loss,
                             expected));
}

std::string nothing_changes(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::vector<RunSpec> specs = two_ranks(subject, b);
  specs.push_back(single_rank(b));
  for (const RunSpec& spec : specs) {
    const bool alone = updates_locally(b) && spec.degrees[YOKE_DP_REPLICATE] > 1;
    const double expected = reference_trace(subject, spec).loss[2];
    const auto evaluate = [&](Instance& instance, TestModel&) {
      Batch batch(instance.split(false), 3);
      instance.must(instance.step(batch, 2, 0.1, YOKE_STEP_FORWARD_ONLY), "step");
      if (!alone) check_evaluation(instance, spec, expected);
    };
    expect_unchanged(subject, b, spec, "YOKE_STEP_FORWARD_ONLY", kAll, evaluate);
    expect_unchanged(
        subject, b, spec, "a step with lr = 0", kParams, [](Instance& instance, TestModel&) {
          Batch batch(instance.split(false), 3);
          instance.must(instance.step(batch, 3, 0), "step");
        });
  }
  return "";
}

std::string not_finite(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : small_layouts(subject, b)) {
    if (updates_locally(b) && spec.degrees[YOKE_DP_REPLICATE] > 1) continue;
    const int32_t last = spec.world() - 1;
    const auto infinite_step = [&](Instance& instance, TestModel& model) {
      model.fault_injection().loss_factor =
          instance.host->rank == last ? std::numeric_limits<double>::infinity() : 1;
      Batch batch(instance.split(false), 3);
      instance.must(instance.step(batch, 3, spec.lr(3)), "step");
      model.fault_injection().loss_factor = 1;
      const std::string where = concat("with ", layout_text(spec), " and a loss of inf on rank ") +
                                concat(last, ", the result of rank ", instance.host->rank);
      if (instance.result.grad_norm != std::numeric_limits<double>::infinity())
        throw Failed(concat(where, " has grad_norm ", instance.result.grad_norm, ", expected inf"));
      if (b.abi_minor >= 1 && instance.result.skipped != 1)
        throw Failed(concat(where, " has skipped = ", instance.result.skipped, ", expected 1"));
    };
    expect_unchanged(
        subject, b, spec, "a step whose gradient norm is not finite", kAll, infinite_step);
  }
  return "";
}

// ---- Equal runs and replicas ----

std::string twice_the_same(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::vector<RunSpec> specs = two_ranks(subject, b);
  specs.push_back(single_rank(b));
  for (const RunSpec& spec : specs) {
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
  if (updates_locally(b)) return "skipped: its ranks update on their own (YOKE_LOCAL_UPDATES)";
  size_t compared = 0;
  for (const RunSpec& spec : two_ranks(subject, b)) {
    std::vector<std::vector<Piece>> pieces(spec.world());
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      for (int64_t step = 1; step <= spec.steps; ++step) {
        Batch batch(instance.split(false), step);
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
          throw Failed(concat("with ",
                              layout_text(spec),
                              ", ",
                              p.key,
                              " of rank ",
                              rank,
                              " differs from the copy that is written"));
      }
    }
  }
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
     "The loss is infinite on the last rank. Every rank reports grad_norm = +infinity and, since "
     "version 1.1, skipped = 1, and keeps its state, including the step number.",
     "test the reduced norm, which is the same on every rank, before the update",
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
