// Small trainings with a backend, from plan to destroy, through the C contract.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sdk/conformance/batch.hpp"
#include "sdk/conformance/check.hpp"
#include "sdk/conformance/instrumentation.hpp"
#include "sdk/conformance/state.hpp"
#include "yoke/error.hpp"

namespace yoke::conformance {

using Degrees = std::array<int32_t, YOKE_NUM_AXES>;
inline constexpr Degrees kUnset{};
// 1 along all axes but these.
Degrees along(std::initializer_list<std::pair<int, int32_t>> degrees);
std::string degrees_text(const Degrees& degrees);

struct RunSpec {
  ModelSpec model;
  Degrees degrees = along({});  // 0 = left to plan
  std::map<std::string, std::string> options;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 0.5;
  int32_t micro_batch = 0;  // sequences of a data rank and forward; 0 = all of a data rank
  bool uneven = false;
  int steps = 6;

  int32_t world() const;
  double lr(int64_t step) const { return 0.02 + 0.01 * static_cast<double>(step % 3); }
};
inline constexpr int32_t kGlobalBatch = 8;
// One rank, two micro-batches a step: for checks that are about something else than numbers.
RunSpec short_run();

// What an observer sees of a run; one value per step.
struct Trace {
  std::vector<double> loss, weight, norm;
  State state;  // at the end
};

// ---- plan

struct PlanRefusal {
  std::string key, given, allowed, hint;
};

// A plan on its way through the backend. Neither copied nor moved: the backend is given pointers.
class Planned {
 public:
  Planned(Subject& subject, const ParallelBackend& backend, const RunSpec& spec);
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  // Calls plan; reasons to refuse are collected. Any thread, but one at a time.
  int32_t ask();
  // The same; throws Failed unless it was accepted and makes up the world.
  void accept();

  YokePlan plan{};
  YokeOptimizer optimizer{};
  YokePlanArgs args{};
  YokeError err;
  std::vector<PlanRefusal> refusals;
  OptionValues options;
  const YokeDescription& description() const { return description_; }
  const RunSpec& spec() const { return spec_; }

 private:
  const ParallelBackend& backend_;
  const RunSpec spec_;
  YokeDescription description_;
  std::unique_ptr<TestModel> model_;
};

// The first of several ways to ask for these degrees that plan accepts: as they are, else with one
// option at another value. Throws Failed with the reasons if there is none.
RunSpec accepted_variant(Subject& subject, const ParallelBackend& backend, RunSpec spec);

// The spec with one option more at another value, for every such value that plan accepts.
std::vector<RunSpec> variants(Subject& subject,
                              const ParallelBackend& backend,
                              const RunSpec& spec);

// Does it declare that ranks update on their own between synchronisations?
bool updates_locally(const ParallelBackend& backend);

// ---- One rank

// Of an ordinary step.
YokeStepArgs step_args(const YokeBatch* batch, int64_t step = 1, double lr = 0.01);

// The backend on one rank. Destroys what is left in the right order.
class Instance {
 public:
  Instance(const ParallelBackend& backend, const Planned& planned, const YokeHost& host);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Each returns the code and leaves what was said in `err`.
  int32_t init();
  int32_t wrap(const YokeModel& model);
  int32_t step(Batch& batch, int64_t step, double lr, uint32_t flags = 0);
  int32_t checkpoint(int32_t op, const std::function<int32_t(const YokePiece&)>& visit);
  void destroy_model();
  void destroy();

  // Throws Failed, naming the call, unless the code is YOKE_OK.
  void must(int32_t code, const char* slot) const;

  std::vector<Piece> save(int32_t op = YOKE_CHECKPOINT_SAVE);  // or DESCRIBE; throws Failed
  void load(const State& state);                               // throws Failed

  Split split(bool uneven) const;  // of this data rank

  // The host of `init`, and a model for `wrap`, with the kit in between; they last as long as this.
  InstrumentedHost& instrument_host();
  InstrumentedModel& instrument(const YokeModel& model);

  const ParallelBackend& backend;
  const YokeHost* host;
  YokeInitArgs init_args{};
  YokeContext* context = nullptr;
  YokeWrapResult wrapped{};
  YokeStepResult result{};
  YokeError err;

 private:
  const Planned& planned_;
  std::unique_ptr<InstrumentedHost> instrumented_host_;
  std::vector<std::unique_ptr<InstrumentedModel>> instrumented_models_;
};

// Runs body on every rank of an accepted plan, before init; the Instance is destroyed after it.
void on_ranks(Subject& subject,
              const ParallelBackend& backend,
              const RunSpec& spec,
              const std::function<void(Instance& instance, TestModel& model)>& body);

// Rank 0's loss and norm, and the state of all ranks at the end. Throws Failed, also if the ranks
// do not report the same.
struct RunHooks {
  const State* start = nullptr;  // loaded before the first step
  int64_t first_step = 1;
  // Before the first step of every rank.
  std::function<void(Instance& instance, FaultInjection& injection)> prepare{};
};
Trace train(Subject& subject,
            const ParallelBackend& backend,
            const RunSpec& spec,
            const RunHooks& hooks = {});

}  // namespace yoke::conformance
