// C++ view of one loaded backend: calls its table, turns codes into yoke::Error. No LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {

// One thing that a backend says about a plan.
struct PlanRemark {
  std::string key;  // full name of a key of the run file
  std::string given;
  std::string allowed;  // in a note: a line of a run file that says the same, or ""
  std::string hint;     // what to write instead
};

// Refused if `refusals` is not empty; the plan must not be used then.
struct PlanResult {
  std::vector<PlanRemark> refusals;
  std::vector<PlanRemark> notes;
};

// "tp_degree = 3: allowed: 1, 2, 4; write tp_degree = 2"
std::string remark_text(const PlanRemark& remark);

// What a handle needs to call the table; shared by all handles of one backend.
struct BackendCalls {
  ParallelBackend table;  // a copy, as large as we know it
  std::string name;
  std::string path;
};

// A model that a backend has wrapped. Destroyed before its BackendContext. One call at a time.
class WrappedModel {
 public:
  WrappedModel(std::shared_ptr<const BackendCalls> calls, const YokeWrapResult& result);
  ~WrappedModel();
  WrappedModel(WrappedModel&& other) noexcept;
  WrappedModel& operator=(WrappedModel&&) = delete;

  // Bytes that this rank holds; -1 = the backend does not say. `model` is this object's own.
  const YokeWrapResult& wrap_result() const { return result_; }

  // One optimizer step, or an evaluation. Collective. Inline: this is the call whose cost is
  // measured.
  YokeStepResult step(const YokeStepArgs& args) {
    YokeStepResult out = kNoResult;
    const int32_t code = step_(result_.model, &args, &out, error_.get());
    if (code != YOKE_OK) [[unlikely]]
      fail("step", code);
    return out;
  }

  // Collective for SAVE and LOAD.
  void checkpoint(const YokeCheckpointArgs& args);

 private:
  static const YokeStepResult kNoResult;  // all NaN: "not known"
  [[noreturn]] void fail(const char* slot, int32_t code);

  std::shared_ptr<const BackendCalls> calls_;
  decltype(ParallelBackend::step) step_;
  std::unique_ptr<YokeError> error_;  // 4 KiB: made once, cleared after a failure
  YokeWrapResult result_;
};

// One rank's context. Outlives its models.
class BackendContext {
 public:
  BackendContext(std::shared_ptr<const BackendCalls> calls, YokeContext* context);
  ~BackendContext();
  BackendContext(BackendContext&& other) noexcept;
  BackendContext& operator=(BackendContext&&) = delete;

  // model lives until the result is destroyed. Collective.
  WrappedModel wrap_model(const YokeModel& model);

 private:
  std::shared_ptr<const BackendCalls> calls_;
  YokeContext* context_;
};

// A backend of this process. Copies are cheap and mean the same library, which is never unloaded.
// Every failure of a call is an Error with the backend's code and a message that starts with its
// name.
class LoadedBackend {
 public:
  // Checks the table and asks for the description. Throws Error: FAILED_PRECONDITION or
  // UNIMPLEMENTED if this host must not use the table. load_backend() is the usual way here.
  LoadedBackend(const ParallelBackend* table, const std::string& path);

  const std::string& name() const { return calls_->name; }
  const std::string& path() const { return calls_->path; }
  const ParallelBackend& table() const { return calls_->table; }
  // A copy, fields that the backend does not know are zero; strings live as long as the process.
  const YokeDescription& description() const;

  // Fills the unset fields of plan. PlanReport are an answer, not an exception. extensions: chained
  // on the arguments. Pure; any thread.
  PlanResult plan(const YokeModelSummary& model,
                  const YokeOption* options,
                  uint64_t num_options,
                  YokePlan& plan,
                  const YokeHeader* extensions = nullptr) const;

  // Collective. args.plan, args.options for the call; args.host until the context is destroyed.
  BackendContext init(const YokeInitArgs& args) const;

 private:
  struct Description;
  std::shared_ptr<const BackendCalls> calls_;
  std::shared_ptr<const Description> description_;
};

}  // namespace yoke
