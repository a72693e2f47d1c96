// The checks of level K: saving and loading the state piece by piece.
//
// K1 compares bits, because the same layout does the same arithmetic. K2 and K3 compare with the
// reference within a tolerance, because a different layout adds in a different order.
#include <algorithm>
#include <cstring>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/numbers.hpp"
#include "yoke/state_kind.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr int kHalf = 3;  // steps before the save, and again after it

std::vector<RunSpec> layouts(Subject& subject, const ParallelBackend& b) {
  std::vector<RunSpec> specs = one_and_two_ranks(subject, b);
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

// Throws Failed, with the check of so many ranks as its root, if `off` describes a difference.
void expect_equal(const std::string& off, const std::string& what, int32_t ranks = 1) {
  if (!off.empty()) throw Failed(what + ": " + off, {root_of(ranks), ""});
}

std::string resumes_bit_for_bit(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const RunSpec& spec : layouts(subject, b)) {
    RunSpec whole = spec;
    whole.steps = 2 * kHalf;
    const Trace saved = train(subject, b, spec);
    const Trace resumed = train(subject, b, spec, from(saved.state));
    expect_equal(difference(resumed.state, train(subject, b, whole).state, 0),
                 concat("with ",
                        degrees_text(spec.degrees),
                        ", 3 steps, SAVE, LOAD and 3 more steps compared with 6 steps"),
                 spec.world());
  }
  return "";
}

// Whether a state that `saved` ranks saved determines the steps of `loaded` ranks. The state of a
// kind with YOKE_STATE_PER_RANK starts anew if the number of ranks is another one, and an update
// rule of the backend's own may depend on it.
bool determines(const ParallelBackend& b, int32_t saved, int32_t loaded) {
  const YokeDescription& d = description_of(b);
  if (saved == loaded || (d.traits & YOKE_OWN_UPDATE) == 0) return true;
  return std::none_of(d.state_kinds, d.state_kinds + d.num_state_kinds, [](const YokeStateKind* k) {
    return (k->flags & YOKE_STATE_PER_RANK) != 0;
  });
}

// Resumes a state of each layout with the next one, in a circle, and compares with the prediction.
std::string resumes_around(Subject& subject,
                           const ParallelBackend& b,
                           const std::vector<RunSpec>& specs) {
  const Numbers numbers(subject, b);
  RunSpec whole = specs[0];
  whole.steps = 2 * kHalf;
  const State expected = numbers.expected(whole).state;
  std::string pairs;
  for (size_t i = 0; i < specs.size(); ++i) {
    const RunSpec &here = specs[i], &there = specs[(i + 1) % specs.size()];
    const std::string what =
        "saved with " + degrees_text(here.degrees) + ", loaded with " + degrees_text(there.degrees);
    const State resumed = train(subject, b, there, from(train(subject, b, here).state)).state;
    pairs += (pairs.empty() ? "" : "; ") + what;
    if (!determines(b, here.world(), there.world()))
      pairs += " (not compared: the state of each rank starts anew)";
    else if (numbers.predicts(here) && numbers.predicts(there))
      expect_equal(state_difference(resumed, expected, bounds_of(there.model.dtype)),
                   what,
                   std::max(here.world(), there.world()));
  }
  return pairs;
}

std::string other_layouts(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  std::vector<RunSpec> specs = layouts(subject, b);
  if (specs.size() == 1) require_layouts({}, subject, b, 2);
  for (RunSpec& spec : specs) spec.model.kind = ModelSpec::kSequence;
  return resumes_around(subject, b, specs);
}

std::string three_and_one(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const std::vector<RunSpec> three = three_ranks(subject, b);
  require_layouts(three, subject, b, 3);
  std::string pairs;
  for (RunSpec spec : three) {
    spec.steps = kHalf;
    RunSpec alone = spec;
    alone.degrees = along({});
    pairs += (pairs.empty() ? "" : "; ") + resumes_around(subject, b, {spec, alone});
  }
  return pairs;
}

std::string exchanges_with_reference(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  if ((description_of(b).traits & YOKE_OWN_UPDATE) != 0)
    throw NotRun("its update is its own (YOKE_OWN_UPDATE), not that of the reference");
  RunSpec spec = layouts(subject, b)[0];
  const Bounds bounds = bounds_of(spec.model.dtype);
  const State half = reference_trace(subject, spec).state;
  RunSpec whole = spec;
  whole.steps = 2 * kHalf;
  const State expected = reference_trace(subject, whole).state;
  expect_equal(state_difference(train(subject, b, spec, from(half)).state, expected, bounds),
               "when the backend resumes from a state of the reference");
  const State ours = train(subject, b, spec).state;
  const State theirs = reference_trace(subject, spec, {&ours, kHalf + 1}).state;
  expect_equal(state_difference(theirs, expected, bounds),
               "when the reference resumes from a state of the backend");
  return "";
}

std::string late_steps(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  if ((description_of(b).traits & YOKE_LOCAL_UPDATES) != 0)
    throw NotRun("its averages depend on the number of the step (YOKE_LOCAL_UPDATES)");
  constexpr int64_t kLast = 999;
  const Numbers numbers(subject, b);
  for (const RunSpec& spec : layouts(subject, b)) {
    if (!numbers.predicts(spec) || !determines(b, 1, spec.world())) continue;
    const bool own = (description_of(b).traits & YOKE_OWN_UPDATE) != 0;
    RunSpec alone = spec;
    alone.degrees = along({});
    State state = own ? train(subject, b, alone).state : reference_trace(subject, spec).state;
    std::memcpy(state.at("optimizer/step").bytes.data(), &kLast, sizeof kLast);
    RunHooks hooks;
    hooks.start = &state;
    hooks.first_step = kLast + 1;
    const State expected = own ? train(subject, b, alone, hooks).state
                               : reference_trace(subject, spec, {&state, kLast + 1}).state;
    const State late = train(subject, b, spec, hooks).state;
    expect_equal(state_difference(late, expected, bounds_of(spec.model.dtype)),
                 concat("with ", degrees_text(spec.degrees), ", 3 steps from number ", kLast + 1),
                 spec.world());
  }
  return "";
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

// The declaration of a kind that only this backend knows, or NULL.
const YokeStateKind* declared_kind(const YokeDescription& d, const std::string& kind) {
  for (uint64_t i = 0; i < d.num_state_kinds; ++i)
    if (declares_kind(view(d.state_kinds[i]->kind), kind)) return d.state_kinds[i];
  return nullptr;
}

// Throws Failed unless the kind of a piece is one of the contract, or declared. The tensor of a
// kind that belongs to the ranks has a row for each of them.
void check_kind(const ParallelBackend& b, const Piece& piece, int32_t rank, int32_t world) {
  const std::string kind = piece.key.substr(piece.key.rfind('/') + 1);
  if (is_standard(piece.key)) return;
  const YokeStateKind* declared = declared_kind(description_of(b), kind);
  if (declared == nullptr && b.abi_minor >= 1)
    throw Failed("checkpoint shows " + piece.key + ", but describe does not declare the kind '" +
                 kind + "' in state_kinds");
  if (declared == nullptr || (declared->flags & YOKE_STATE_PER_RANK) == 0) return;
  const int64_t row =
      piece.shape.empty() || piece.shape[0] == 0
          ? 0
          : numel(piece.shape.data(), static_cast<int32_t>(piece.shape.size())) / piece.shape[0];
  const bool fits = !piece.shape.empty() && piece.shape[0] == world;
  const bool mine = piece.begin == rank * row && piece.count <= row && piece.stride == 0;
  if (fits && (mine || piece.count == 0)) return;
  throw Failed(concat("rank ", rank, " of ", world, " shows ", piece.text()) +
               ", but its kind has YOKE_STATE_PER_RANK: the shape is [" +
               concat(world, ", ...], and a rank shows its own row"));
}

std::string tiles(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  size_t count = 0;
  for (const RunSpec& spec : layouts(subject, b)) {
    std::vector<std::vector<Piece>> pieces(spec.world());
    std::string missing;
    on_ranks(subject, b, spec, [&](Instance& instance, TestModel& model) {
      instance.must(instance.init(), "init");
      instance.must(instance.wrap(model.model()), "wrap_model");
      check_pieces(instance, pieces[instance.host->rank]);
      for (const Piece& p : pieces[instance.host->rank])
        check_kind(b, p, instance.host->rank, spec.world());
    });
    const auto model = subject.test_bed.make_model(spec.model, YokeString{"", 0});
    const std::string with = "with " + degrees_text(spec.degrees) + ", ";
    try {
      missing = missing_key(assemble(pieces), b, spec, *model->model().summary);
    } catch (const Failed& e) {
      throw Failed(with + e.what());
    }
    if (!missing.empty()) throw Failed(with + "no rank shows " + missing);
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
      Batch batch(instance.split(), step);
      instance.must(instance.step(batch, step, spec.lr(step)),
                    "step after a checkpoint that failed");
    }
    expect_equal(difference(assemble({instance.save()}), usual, 0),
                 "after three checkpoints that failed");
  });
  return "";
}

constexpr Check kRows[] = {
    {"K1",
     "a run resumes bit for bit",
     "3 steps, SAVE, LOAD into a new context and 3 more steps give the bits of 6 steps, on one "
     "rank and on two along each axis.",
     "save and load the moments and the step number too, and all other state that is kept between "
     "steps (state_kinds); with local updates, each rank has a state of its own",
     resumes_bit_for_bit},
    {"K2",
     "a state can be loaded into another layout",
     "For each layout, a state that is saved with it is loaded with a different layout if there "
     "is one. The numbers are those of the reference.",
     "describe the elements of each piece correctly: begin, count, run, stride",
     other_layouts},
    {"K11",
     "a state of three ranks can be loaded on one",
     "A state that is saved on three ranks is loaded on one, and the other way round, for each "
     "axis "
     "that accepts three ranks. The numbers are those of the reference.",
     "describe the elements of each piece correctly, also if ranks hold parts of different sizes",
     three_and_one},
    {"K12",
     "late steps are like early ones",
     "A state with step 999 is loaded, and the model trains for 3 steps on one rank and on two "
     "along "
     "each axis. The numbers are those of the reference.",
     "take the number of the step from YokeStepArgs, and keep it in 64 bits",
     late_steps},
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
     "shows the pieces of SAVE without views. Kinds that the contract does not have are declared "
     "in "
     "state_kinds, and those with YOKE_STATE_PER_RANK have a row for each rank.",
     "call visit for every tensor on every op, and give replica 0 to exactly one of the ranks that "
     "hold the same elements",
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
