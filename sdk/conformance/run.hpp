// Short training runs with a backend, from plan to destroy, through the C contract.
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
// Returns these degrees, with 1 along all other axes.
Degrees along(std::initializer_list<std::pair<int, int32_t>> degrees);
// Returns the degrees above 1 as text, e.g. "dp_degree 2 x tp_degree 2".
std::string degrees_text(const Degrees& degrees);

// A run: model, layout, options, optimizer and number of steps.
struct RunSpec {
  ModelSpec model;
  Degrees degrees = along({});  // 0 = plan chooses
  std::map<std::string, std::string> options;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 0.5;
  int32_t micro_batch = 0;  // sequences of a data rank in one forward; 0 = all of them
  bool uneven = false;      // data ranks and micro-batches have different numbers of targets
  int steps = 6;

  int32_t world() const;  // number of ranks
  double lr(int64_t step) const { return 0.02 + 0.01 * static_cast<double>(step % 3); }
};
inline constexpr int32_t kGlobalBatch = 8;
// Returns a run of 3 steps on one rank with two micro-batches, for checks that are not about
// numbers.
RunSpec short_run();

// The results of a run, with one value for each step.
struct Trace {
  std::vector<double> loss, weight, norm;
  State state;  // state after the last step
};

// ---- Planning ----

// The strings of a YokeRefusal.
struct PlanRefusal {
  std::string key, given, allowed, hint;
};

// The arguments of a call of plan, and its results. An object is neither copied nor moved, because
// the backend gets pointers to its members.
class Planned {
 public:
  Planned(Subject& subject, const ParallelBackend& backend, const RunSpec& spec);
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

  // Calls plan, collects its refusals and returns its code. Any thread, one call at a time.
  int32_t ask();
  // Calls plan and fills in the remaining fields as the host does. Throws Failed if plan refuses,
  // or if the product of the degrees is not the number of ranks.
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

// Returns the spec if plan accepts it, else the first of variants(). If there is none, throws
// Failed with the refusals.
RunSpec accepted_variant(Subject& subject, const ParallelBackend& backend, RunSpec spec);

// Returns copies of `spec` that set one more option, each to a value that is not its default.
// Copies that plan refuses are left out.
std::vector<RunSpec> variants(Subject& subject,
                              const ParallelBackend& backend,
                              const RunSpec& spec);

// Returns whether the backend declares that ranks update their parameters independently between two
// synchronizations.
bool updates_locally(const ParallelBackend& backend);

// ---- One rank ----

// Returns the arguments of an ordinary step.
YokeStepArgs step_args(const YokeBatch* batch, int64_t step = 1, double lr = 0.01);

// The backend on one rank. The destructor destroys what still exists, in the right order.
class Instance {
 public:
  Instance(const ParallelBackend& backend, const Planned& planned, const YokeHost& host);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // Each of these calls one function of the backend's table. It returns the backend's error code
  // and stores the text of the error in `err`.
  int32_t init();
  int32_t wrap(const YokeModel& model);
  int32_t step(Batch& batch, int64_t step, double lr, uint32_t flags = 0);
  int32_t checkpoint(int32_t op, const std::function<int32_t(const YokePiece&)>& visit);
  void destroy_model();
  void destroy();

  // Throws Failed with the name of the call unless the code is YOKE_OK.
  void must(int32_t code, const char* slot) const;

  std::vector<Piece> save(int32_t op = YOKE_CHECKPOINT_SAVE);  // or DESCRIBE; throws Failed
  void load(const State& state);                               // throws Failed

  Split split(bool uneven) const;  // samples of a batch that this data rank gets

  // instrument_host returns a wrapper of the host, which later calls of init() pass to the backend.
  // instrument returns a wrapper of a model, to be passed to wrap(). Both live as long as this
  // object.
  InstrumentedHost& instrument_host();
  InstrumentedModel& instrument(const YokeModel& model);

  const ParallelBackend& backend;
  const YokeHost* host;
  YokeInitArgs init_args{};
  YokeContext* context = nullptr;
  YokeWrapResult wrapped{};
  YokeStepResult result{};
  YokeError err;
  double loss_scale = 256;  // factor of the loss that step() gives in fp16

 private:
  const Planned& planned_;
  std::unique_ptr<InstrumentedHost> instrumented_host_;
  std::vector<std::unique_ptr<InstrumentedModel>> instrumented_models_;
};

// Plans the run and calls `body` on every rank, before init. Each Instance is destroyed after its
// body has returned.
void on_ranks(Subject& subject,
              const ParallelBackend& backend,
              const RunSpec& spec,
              const std::function<void(Instance& instance, TestModel& model)>& body);

struct RunHooks {
  const State* start = nullptr;  // state to load before the first step
  int64_t first_step = 1;
  // Called on every rank before its first step.
  std::function<void(Instance& instance, FaultInjection& injection)> prepare{};
};
// Trains with this spec. Returns the loss and norm that rank 0 reports, and the state of all
// ranks at the end. Throws Failed if a call fails, or if the ranks report different results.
Trace train(Subject& subject,
            const ParallelBackend& backend,
            const RunSpec& spec,
            const RunHooks& hooks = {});

}  // namespace yoke::conformance
