// Short training runs with a backend, from init to destroy, through the C contract.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sdk/conformance/instrumented_host.hpp"
#include "sdk/conformance/instrumented_model.hpp"
#include "sdk/conformance/planned.hpp"
#include "sdk/conformance/state.hpp"

namespace yoke::conformance {

// Returns the id of the check that examines the numbers of so many ranks.
const char* root_of(int32_t ranks);

// The failure of a run whose ranks report different results.
class RanksDiffer : public Failed {
 public:
  using Failed::Failed;
};

// Returns the code and the text of a failed call, for messages.
std::string code_text(int32_t code, const YokeError& err);

// The results of a run, with one value for each step.
struct Trace {
  std::vector<double> loss, weight, norm;
  State state;  // state after the last step
};

// Returns the first key that a complete state has and this one lacks, or "": every parameter, the
// step and, without YOKE_OWN_UPDATE, the moments of every trainable parameter.
std::string missing_key(const State& state,
                        const ParallelBackend& backend,
                        const RunSpec& spec,
                        const YokeModelSummary& model);

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

  // Returns which samples of a batch this data rank gets.
  Split split(Targets targets = Targets::kAll) const;

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
  // Calls of the instrumented host until destroy() had returned.
  int64_t calls_before_return = 0;
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
  bool ranks_may_differ = false;  // whether ranks may report different results
};
// Trains with this spec. Returns the loss and norm that rank 0 reports, and the state of all
// ranks at the end. Throws Failed if a call fails or the state is not complete, and RanksDiffer if
// the ranks report different results.
Trace train(Subject& subject,
            const ParallelBackend& backend,
            const RunSpec& spec,
            const RunHooks& hooks = {});
// Does the same with ranks that are processes. Call it before this process has started a thread.
Trace train_in_processes(Subject& subject, const ParallelBackend& backend, const RunSpec& spec);

}  // namespace yoke::conformance
