// C++ objects that call the table of functions of a loaded backend and turn its error codes into
// yoke::Error. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/backend_call.hpp"
#include "yoke/error.hpp"

namespace yoke {

// A refusal or a note that a backend returns for a plan.
struct PlanRemark {
  std::string key;      // full name of a key of the run file
  std::string given;    // value given, or ""
  std::string allowed;  // allowed values; in a note, an equivalent line of a run file, or ""
  std::string hint;     // what to write instead, or ""
};

// What a backend returns for a plan. If `refusals` is not empty, the backend does not accept the
// plan, and the plan must not be used.
struct PlanResult {
  std::vector<PlanRemark> refusals;
  std::vector<PlanRemark> notes;
};

// Returns "tp_degree = 3; allowed: 1, 2, 4; write tp_degree = 2".
std::string remark_text(const PlanRemark& remark);

// A kind of state that a backend declares, see YokeStateKind.
struct StateKind {
  std::string name;       // as declared; a # stands for a number
  bool per_rank = false;  // belongs to the ranks instead of to elements of a parameter
};

// Returns the kinds of a description; empty if it is of version 1.0.
std::vector<StateKind> state_kinds(const YokeDescription& description);

// The function table of a backend, with its name and path for messages. All handles of one backend
// share it.
struct BackendCalls {
  ParallelBackend table;  // copy with the fields that this version of the contract knows
  std::string name;
  std::string path;
};

// A model that a backend has wrapped. It must be destroyed before its BackendContext. Not
// thread-safe: the contract demands one call at a time.
class WrappedModel {
 public:
  WrappedModel(std::shared_ptr<const BackendCalls> calls, const YokeWrapResult& result);
  ~WrappedModel();
  WrappedModel(WrappedModel&& other) noexcept;
  WrappedModel& operator=(WrappedModel&&) = delete;

  // Returns what wrap_model reported, such as the bytes that this rank holds; -1 = unknown. Its
  // field `model` belongs to this object.
  const YokeWrapResult& wrap_result() const { return result_; }

  // Runs one optimizer step, or an evaluation. Collective. Fields that the backend does not fill
  // are NaN. Throws Error with the backend's code. Inline, because bench/ measures the cost of this
  // call.
  YokeStepResult step(const YokeStepArgs& args) {
    YokeStepResult out = kNoResult;
    const BackendCall call("step");
    const int32_t code = step_(result_.model, &args, &out, error_.get());
    if (code != YOKE_OK) [[unlikely]]
      fail("step", code);
    return out;
  }

  // Saves, loads or describes the state. Collective for SAVE and LOAD. Throws Error.
  void checkpoint(const YokeCheckpointArgs& args);

 private:
  static const YokeStepResult kNoResult;  // all values NaN, which means unknown
  [[noreturn]] void fail(const char* slot, int32_t code);

  std::shared_ptr<const BackendCalls> calls_;
  decltype(ParallelBackend::step) step_;
  std::unique_ptr<YokeError> error_;  // 4 KiB, so it is allocated once and cleared after a failure
  YokeWrapResult result_;
};

// The context of one rank. It must outlive its models.
class BackendContext {
 public:
  BackendContext(std::shared_ptr<const BackendCalls> calls, YokeContext* context);
  ~BackendContext();
  BackendContext(BackendContext&& other) noexcept;
  BackendContext& operator=(BackendContext&&) = delete;

  // Wraps a model, which must live until the result is destroyed. Collective. Throws Error.
  WrappedModel wrap_model(const YokeModel& model);

 private:
  std::shared_ptr<const BackendCalls> calls_;
  YokeContext* context_;
};

// A backend of this process. Copies are cheap and refer to the same library, which is never
// unloaded. If a call fails, an Error with the backend's code is thrown, whose message starts with
// the name of the backend.
class LoadedBackend {
 public:
  // Checks the table and reads the description. Throws Error: UNIMPLEMENTED for a different version
  // of the ABI, FAILED_PRECONDITION for any other reason not to use the table. Usually called by
  // load_backend().
  LoadedBackend(const ParallelBackend* table, const std::string& path);

  const std::string& name() const { return calls_->name; }
  const std::string& path() const { return calls_->path; }
  const ParallelBackend& table() const { return calls_->table; }
  // Returns a copy of the description. Fields that the backend's version of the contract does not
  // have are zero. The strings live as long as the process.
  const YokeDescription& description() const;

  // Asks the backend to check a plan and to fill in its unset fields. Refusals are returned, not
  // thrown; Error is thrown if the call fails without a refusal. `extensions` is chained on the
  // arguments, NULL = none. Changes nothing but `plan`. Thread-safe.
  PlanResult plan(const YokeModelSummary& model,
                  const YokeOption* options,
                  uint64_t num_options,
                  YokePlan& plan,
                  const YokeHeader* extensions = nullptr) const;

  // Creates the context of a rank. Collective. args.plan and args.options must live during the
  // call, args.host until the context is destroyed. Throws Error.
  BackendContext init(const YokeInitArgs& args) const;

 private:
  struct Description;
  std::shared_ptr<const BackendCalls> calls_;
  std::shared_ptr<const Description> description_;
};

}  // namespace yoke
