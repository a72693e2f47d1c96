// The checks of level K: saving and loading the state piece by piece.
//
// K1 compares bits, because the same layout does the same arithmetic. K2 and K3 compare with the
// reference within a tolerance, because a different layout adds in a different order.
#include <algorithm>
#include <set>

#include "sdk/conformance/layouts.hpp"
#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/reference.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int kHalf = 3;  // steps before the save, and again after it

std::vector<RunSpec> layouts(Subject& subject, const ParallelBackend& b) {
  std::vector<RunSpec> specs = two_ranks(subject, b);
  RunSpec alone;
  alone.model.dtype = best_dtype(b);
  specs.insert(specs.begin(), alone);
  for (RunSpec& spec : specs) spec.steps = kHalf;
  return specs;
}

// Returns hooks with which a run resumes from `state`, the state after kHalf steps.
RunHooks from(const State& state) {
  RunHooks hooks;
  hooks.start = &state;
  hooks.first_step = kHalf + 1;
  return hooks;
}

void expect_equal(const State& state,
                  const State& expected,
                  double relative,
                  const std::string& what) {
  const std::string off = difference(state, expected, relative);
  if (!off.empty()) throw Failed(what + ": " + off);
}

std::string resumes_bit_for_bit(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : layouts(subject, b)) {
    RunSpec whole = spec;
    whole.steps = 2 * kHalf;
    const Trace saved = train(subject, b, spec);
    const Trace resumed = train(subject, b, spec, from(saved.state));
    expect_equal(resumed.state,
                 train(subject, b, whole).state,
                 0,
                 concat("with ",
                        degrees_text(spec.degrees),
                        ", 3 steps, SAVE, LOAD and 3 more steps compared with 6 steps"));
  }
  return "";
}

std::string other_layouts(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  if (updates_locally(b)) return "skipped: its ranks update on their own (YOKE_LOCAL_UPDATES)";
  std::vector<RunSpec> specs = layouts(subject, b);
  for (RunSpec& spec : specs) spec.model.kind = ModelSpec::kSequence;
  RunSpec whole = specs[0];
  whole.steps = 2 * kHalf;
  const State expected = reference_trace(subject, whole).state;
  for (size_t i = 0; i < specs.size(); ++i) {
    const RunSpec &here = specs[i], &there = specs[(i + 1) % specs.size()];
    const State saved = train(subject, b, here).state;
    expect_equal(standard_kinds(train(subject, b, there, from(saved)).state),
                 expected,
                 tolerance(there.model.dtype),
                 "saved with " + degrees_text(here.degrees) + ", loaded with " +
                     degrees_text(there.degrees));
  }
  return concat(specs.size(), " layouts");
}

std::string exchanges_with_reference(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  RunSpec spec = layouts(subject, b)[0];
  const double relative = tolerance(spec.model.dtype);
  const State half = reference_trace(subject, spec).state;
  RunSpec whole = spec;
  whole.steps = 2 * kHalf;
  const State expected = reference_trace(subject, whole).state;
  expect_equal(standard_kinds(train(subject, b, spec, from(half)).state),
               expected,
               relative,
               "when the backend resumes from a state of the reference");
  const State ours = train(subject, b, spec).state;
  expect_equal(reference_trace(subject, spec, {&ours, kHalf + 1}).state,
               expected,
               relative,
               "when the reference resumes from a state of the backend");
  return "";
}

// Returns the keys that the state of AdamW must have.
std::set<std::string> expected_keys(const YokeModelSummary& model) {
  std::set<std::string> keys = {"optimizer/step"};
  for (uint64_t i = 0; i < model.num_params; ++i) {
    const std::string name(view(model.params[i]->name));
    keys.insert(name + "/param");
    if (!model.params[i]->trainable) continue;
    keys.insert(name + "/exp_avg");
    keys.insert(name + "/exp_avg_sq");
  }
  return keys;
}

// Saves the pieces of one rank. Throws Failed unless DESCRIBE shows the same pieces.
void check_pieces(Instance& instance, std::vector<Piece>& saved) {
  saved = instance.save();
  const std::vector<Piece> described = instance.save(YOKE_CHECKPOINT_DESCRIBE);
  if (described.size() != saved.size())
    throw Failed(
        concat("DESCRIBE shows ", described.size(), " pieces, but SAVE shows ", saved.size()));
  for (size_t i = 0; i < saved.size(); ++i) {
    if (!described[i].same_place(saved[i]))
      throw Failed(concat("piece ",
                          i,
                          " is ",
                          described[i].text(),
                          " on DESCRIBE, but ",
                          saved[i].text(),
                          " on SAVE"));
  }
}

std::string tiles(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  size_t count = 0;
  for (const RunSpec& spec : layouts(subject, b)) {
    std::vector<std::vector<Piece>> pieces(spec.world());
    std::set<std::string> expected;
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      check_pieces(instance, pieces[instance.host->rank]);
      if (instance.host->rank == 0) expected = expected_keys(*model.model().summary);
    });
    std::set<std::string> found;
    const std::string with = "with " + degrees_text(spec.degrees) + ", ";
    try {
      for (const auto& [key, tensor] : assemble(pieces)) found.insert(key);
    } catch (const Failed& e) {
      throw Failed(with + e.what());
    }
    for (const std::string& key : expected)
      if (found.count(key) == 0) throw Failed(with + "no rank shows " + key);
    for (const auto& of_rank : pieces) count += of_rank.size();
  }
  return concat(count, " pieces");
}

std::string visitor_returns_error(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const RunSpec spec = layouts(subject, b)[0];
  const State usual = train(subject, b, spec).state;
  on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
    instance.must(instance.init(), "init");
    instance.must(instance.wrap(model.model()), "wrap_model");
    const State before = assemble({instance.save()});
    for (const int32_t op :
         {YOKE_CHECKPOINT_SAVE, YOKE_CHECKPOINT_DESCRIBE, YOKE_CHECKPOINT_LOAD}) {
      int visits = 0;
      const int32_t code = instance.checkpoint(op, [&](const YokePiece&) -> int32_t {
        return ++visits == 2 ? YOKE_DATA_LOSS : YOKE_OK;
      });
      if (code != YOKE_DATA_LOSS)
        throw Failed(concat("the visitor returned YOKE_DATA_LOSS, but checkpoint returned ", code));
      if (visits != 2)
        throw Failed(concat(
            "the visitor was called ", visits - 2, " more times after it had returned an error"));
    }
    instance.load(before);  // the host does the same after a LOAD that failed
    for (int64_t step = 1; step <= spec.steps; ++step) {
      Batch batch(instance.split(false), step);
      instance.must(instance.step(batch, step, spec.lr(step)),
                    "step after a checkpoint that failed");
    }
    expect_equal(assemble({instance.save()}), usual, 0, "after three checkpoints that failed");
  });
  return "";
}

constexpr Check kRows[] = {
    {"K1",
     "a run resumes bit for bit",
     "3 steps, SAVE, LOAD into a new context and 3 more steps give the bits of 6 steps, on one "
     "rank and on two along each axis.",
     "save and load the moments and the step number too, and keep no other state between steps",
     resumes_bit_for_bit},
    {"K2",
     "a state can be loaded into another layout",
     "For each layout, a state that is saved with it is loaded with a different layout if there "
     "is one. The numbers are those of the reference.",
     "describe the elements of each piece correctly: begin, count, run, stride",
     other_layouts},
    {"K3",
     "states can be exchanged with the reference",
     "The backend resumes from a state of the reference, and the reference resumes from a state "
     "of the backend.",
     "use the names and kinds of the contract, with the meaning that the formulas give them",
     exchanges_with_reference},
    {"K8",
     "pieces cover every tensor exactly once",
     "There are pieces for all parameters, for the moments of the trainable ones, and for the "
     "step. The pieces with replica 0 of all ranks cover every element exactly once. DESCRIBE "
     "shows the pieces of SAVE without views.",
     "give replica 0 to exactly one of the ranks that hold the same elements",
     tiles},
    {"K10",
     "an error of the visitor ends the call",
     "The second visit of SAVE, DESCRIBE and LOAD fails. checkpoint returns that code and makes "
     "no more visits. After another LOAD, the model trains.",
     "return the code of the visitor at once",
     visitor_returns_error},
};

}  // namespace

void add_checkpoint_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
