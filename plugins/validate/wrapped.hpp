// The model of the inner backend, with every call of its functions checked.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/validate/backend_call.hpp"
#include "plugins/validate/host.hpp"
#include "plugins/validate/pieces.hpp"
#include "plugins/validate/step_rules.hpp"
#include "yoke/backend.hpp"
#include "yoke/inner.hpp"

namespace yoke::validate {

// What a model needs of its context, which outlives it.
struct Rank {
  const ParallelBackend& table;
  const YokeDescription& description;  // description of the inner backend
  const YokePlan& plan;
  Monitor& monitor;
  WatchedHost& host;
  const Ranks& ranks;
  std::shared_ptr<ManagedLedger> managed;
  int64_t models = 0;  // models that have not been destroyed
};

class CheckedModel final : public Wrapped {
 public:
  CheckedModel(Rank& rank, YokeContext* context, const YokeModel& model);
  ~CheckedModel() override;
  CheckedModel(const CheckedModel&) = delete;
  CheckedModel& operator=(const CheckedModel&) = delete;

  YokeWrapResult wrap_result() const override { return wrapped_; }
  YokeStepResult step(const YokeStepArgs& args) override;
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  struct Visit;

  Expected expected() const;
  // Visits the pieces of the inner backend. visit: of the host; NULL = only the checks. Returns the
  // hash of each piece with SAVE and LOAD; 0 = the visitor did not have it.
  std::vector<uint64_t> walk(int32_t op, const YokeCheckpointArgs* host);
  int32_t visit(Visit& now, const YokePiece& piece, YokeError* err);
  // Checks the pieces of all ranks. Collective.
  void check_coverage();
  void check_replicas(const std::vector<uint64_t>& hashes);
  void check_evaluation(const std::vector<uint64_t>& before);

  Rank& rank_;
  WatchedModel model_;
  StepRules steps_;
  YokeWrapResult wrapped_{};
  // The pieces of the first call of checkpoint.
  std::vector<PieceKey> pieces_;
  bool knows_pieces_ = false;
  std::vector<Copies> copies_;
  // The hashes of the pieces, if nothing has changed the state since they were computed.
  std::vector<uint64_t> hashes_;
};

}  // namespace yoke::validate
