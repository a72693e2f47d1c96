// Checks C3, C4, C5 and C15: structs of other sizes, and extension chains.
//
// A host or a backend of a later version passes longer structs and unknown extensions. These checks
// imitate such a version without having one: each struct is followed by a guarded tail, and
// struct_size either includes the tail or does not.
#include <cstring>
#include <memory>

#include "sdk/conformance/level.hpp"
#include "sdk/conformance/library.hpp"
#include "sdk/conformance/progress.hpp"
#include "sdk/conformance/run.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

constexpr unsigned char kPoison = 0xa5;
constexpr size_t kTail = 64;

// A struct followed by a tail. The tail is not part of the struct until grow() is called; then it
// represents the fields that a later version has appended.
template <class T>
struct Guarded {
  T known;
  unsigned char tail[kTail];

  explicit Guarded(const T& value) : known(value) { std::memset(tail, kPoison, kTail); }
  // Makes the tail part of the struct.
  void grow() { known.header.struct_size = sizeof(Guarded); }
  void expect_untouched(const char* name) const {
    for (size_t i = 0; i < kTail; ++i) {
      if (tail[i] != kPoison)
        throw Failed(concat("byte ",
                            i,
                            " behind the caller's ",
                            name,
                            " was written; at most header.struct_size bytes may be written"));
    }
  }
};

template <class T>
void expect_header(const T& value, uint32_t id, const char* name) {
  if (value.header.struct_size == sizeof(T) && value.header.struct_id == id) return;
  throw Failed(concat("the header of the caller's ", name, " was overwritten"));
}

std::string keeps_to_the_size(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  on_ranks(subject, b, basic_run(subject, b), [&](Instance& instance, TestModel& model) {
    Guarded<YokeError> err(make_error());
    b.describe(nullptr, &err.known);
    err.expect_untouched("YokeError");
    instance.must(instance.init(), "init");
    Guarded<YokeWrapResult> wrapped(instance.wrapped);
    instance.must(call_backend("wrap_model",
                               [&] {
                                 return b.wrap_model(
                                     instance.context, &model.model(), &wrapped.known, &err.known);
                               }),
                  "wrap_model");
    instance.wrapped = wrapped.known;
    wrapped.expect_untouched("YokeWrapResult");
    expect_header(wrapped.known, YOKE_ID_WRAP_RESULT, "YokeWrapResult");
    Batch batch(instance.split(), 1);
    const YokeStepArgs args = step_args(&batch.batch());
    Guarded<YokeStepResult> result(instance.result);
    instance.must(
        call_backend(
            "step",
            [&] { return b.step(instance.wrapped.model, &args, &result.known, &err.known); }),
        "step");
    result.expect_untouched("YokeStepResult");
    expect_header(result.known, YOKE_ID_STEP_RESULT, "YokeStepResult");
    err.expect_untouched("YokeError");
  });
  return "";
}

std::string short_texts(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  for (const size_t room : {0, 1, 16}) {
    YokeError err = make_error();
    std::memset(err.text, kPoison, sizeof err.text);
    err.header.struct_size = static_cast<uint32_t>(offsetof(YokeError, text) + room);
    const int32_t code = call_backend("plan", [&] { return b.plan(nullptr, nullptr, &err); });
    if (code == YOKE_OK) throw Failed("plan(NULL, NULL) succeeded");
    for (size_t i = room; i < sizeof err.text; ++i) {
      if (static_cast<unsigned char>(err.text[i]) != kPoison)
        throw Failed(
            concat("an error text with room for ", room, " bytes was written at byte ", i));
    }
    if (room > 0 && std::memchr(err.text, 0, room) == nullptr)
      throw Failed(concat("an error text with room for ", room, " bytes has no 0 byte in it"));
  }
  return "";
}

// A copy of a model's summary. `through` has been applied to it and to each parameter and block.
class Summary {
 public:
  template <class Through>
  Summary(const YokeModelSummary& model, Through&& through) : model_(through(model)) {
    for (uint64_t p = 0; p < model.num_params; ++p) params_.push_back(through(*model.params[p]));
    for (uint64_t b = 0; b < model.num_blocks; ++b) blocks_.push_back(through(*model.blocks[b]));
    for (const auto& param : params_) param_pointers_.push_back(&param.known);
    for (const auto& block : blocks_) block_pointers_.push_back(&block.known);
    model_.known.params = param_pointers_.data();
    model_.known.blocks = block_pointers_.data();
  }
  Summary(const Summary&) = delete;
  const YokeModelSummary* get() const { return &model_.known; }

 private:
  Guarded<YokeModelSummary> model_;
  std::vector<Guarded<YokeParameter>> params_;
  std::vector<Guarded<YokeBlock>> blocks_;
  std::vector<const YokeParameter*> param_pointers_;
  std::vector<const YokeBlock*> block_pointers_;
};

// Trains two steps and returns the state. `through` is applied to every argument struct, and may
// change its size or its chain.
template <class Through>
State two_steps(Subject& subject, const ParallelBackend& b, Through&& through) {
  State state;
  Planned planned(subject, b, basic_run(subject, b));
  const Summary in_plan(*planned.args.model, through);
  auto plan_args = through(planned.args);
  plan_args.known.model = in_plan.get();
  auto plan = through(planned.plan);
  const int32_t code =
      call_backend("plan", [&] { return b.plan(&plan_args.known, &plan.known, nullptr); });
  if (code != YOKE_OK) throw Failed(concat("plan refuses it, with code ", code));
  for (int32_t& degree : plan.known.degree) degree = 1;
  if (plan.known.reduce_dtype == 0)
    plan.known.reduce_dtype = yoke_default_reduce_dtype(plan.known.param_dtype);
  plan.known.micro_batch = kGlobalBatch;
  auto optimizer = through(planned.optimizer);
  plan.known.optimizer = &optimizer.known;
  on_ranks(subject, b, basic_run(subject, b), [&](Instance& instance, TestModel& model) {
    auto host = through(*instance.host);
    auto args = through(instance.init_args);
    args.known.plan = &plan.known;
    args.known.host = &host.known;
    instance.must(
        call_backend("init", [&] { return b.init(&args.known, &instance.context, &instance.err); }),
        "init");
    const Summary wide_summary(*model.model().summary, through);
    auto wide = through(model.model());
    wide.known.summary = wide_summary.get();
    instance.must(instance.wrap(wide.known), "wrap_model");
    for (const int64_t step : {1, 2}) {
      Batch batch(instance.split(), step);
      auto contents = through(batch.batch());
      auto step_with = through(step_args(&contents.known));
      step_with.known.step = step;
      instance.must(call_backend("step",
                                 [&] {
                                   return b.step(instance.wrapped.model,
                                                 &step_with.known,
                                                 &instance.result,
                                                 &instance.err);
                                 }),
                    "step");
    }
    state = assemble({instance.save()});
    instance.destroy_model();
    instance.destroy();
  });
  return state;
}

State two_plain_steps(Subject& subject, const ParallelBackend& b) {
  return two_steps(
      subject, b, [](const auto& value) { return Guarded<std::decay_t<decltype(value)>>(value); });
}

std::string later_versions(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  const State larger = two_steps(subject, b, [](const auto& value) {
    Guarded<std::decay_t<decltype(value)>> guarded(value);
    guarded.grow();
    return guarded;
  });
  const std::string off = difference(larger, two_plain_steps(subject, b), 0);
  if (!off.empty()) throw Failed("with argument structs that are longer than this host's, " + off);
  return "";
}

std::string unknown_extensions(Subject& subject) {
  const ParallelBackend& b = load_table(subject.path);
  struct Chained {
    explicit Chained() { std::memset(contents, kPoison, sizeof contents); }
    YokeHeader header{};
    unsigned char contents[kTail];
  };
  std::vector<std::unique_ptr<Chained>> nodes;
  const State chained = two_steps(subject, b, [&](const auto& value) {
    Guarded<std::decay_t<decltype(value)>> guarded(value);
    nodes.push_back(std::make_unique<Chained>());
    nodes.back()->header = {sizeof(Chained), 0x7fff, value.header.next};
    guarded.known.header.next = &nodes.back()->header;
    return guarded;
  });
  const std::string off = difference(chained, two_plain_steps(subject, b), 0);
  if (!off.empty()) throw Failed("with unknown structs on the extension chains, " + off);
  return "";
}

constexpr Check kRows[] = {
    {"C3",
     "argument structs of later versions are accepted",
     "Every argument struct is 64 bytes longer than this host's, and so are the parameters and "
     "blocks of the model, with garbage in the additional bytes. Two steps give the same bits as "
     "without them.",
     "compare struct_size with >=, never with ==, and copy at most the bytes that you know",
     later_versions},
    {"C4",
     "results stay within the structs of the caller",
     "After each call, the bytes past the end of YokeWrapResult, YokeStepResult and YokeError "
     "are unchanged. The headers of both results are unchanged as well.",
     "write results field by field, or with write_result of yoke/backend.hpp",
     keeps_to_the_size},
    {"C5",
     "unknown extensions are ignored",
     "A struct with an unknown struct_id is on the chain of every argument. Two steps give the "
     "same bits as without it.",
     "walk the chain from header.next, compare struct_id, and skip the structs that you do not "
     "know",
     unknown_extensions},
    {"C15",
     "short error buffers are respected",
     "The error text has room for 0, 1 or 16 bytes. Nothing is written past them, and the text "
     "ends with a 0 byte if it has any room.",
     "truncate the text to err->header.struct_size - offsetof(YokeError, text) bytes",
     short_texts},
};

}  // namespace

void add_size_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
