// A model under ZeRO: puts weights, gradients and optimizer together and runs the steps.
#pragma once

#include <memory>
#include <vector>

#include "plugins/deepspeed_stub/gradients.hpp"
#include "plugins/deepspeed_stub/optimizer.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// What the models of one context share.
struct Environment {
  explicit Environment(const YokeInitArgs& args);  // collective
  const YokePlan& plan;
  const YokeHost& host;
  const Settings settings;
  const Device device;
  const Comms comms;
};

class Engine final : public Wrapped {
 public:
  // Collective. model and environment outlive the engine.
  Engine(const YokeModel& model, const Environment& environment);

  YokeWrapResult wrap_result() const override;
  YokeStepResult step(const YokeStepArgs& args) override;
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  // What a block left behind in the micro-batch under way.
  struct BlockState {
    void* saved = nullptr;
    ManagedTensor carry;
  };
  void run_micro_batch(const YokeMicroBatch& micro, double loss_grad, bool training);
  void forward(const YokeMicroBatch& micro, bool training);
  void backward(double loss_grad);
  void drop_blocks();
  void check_cancel() const;
  void reduce_totals(double claimed_targets, bool training);
  void update(int64_t step, double lr);
  StepTotals read_totals(double claimed_targets) const;
  StepTotals* totals() const { return static_cast<StepTotals*>(totals_.span().data); }

  const YokeModel& model_;
  const Environment& environment_;
  const YokeOptimizer& config_;
  const ModelSpec spec_;
  const Setup setup_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Gradients> gradients_;
  Optimizer optimizer_;
  std::vector<BlockState> blocks_;
  double loss_ = 0, targets_ = 0;  // that this rank has summed in the step under way
  const Array totals_;             // one StepTotals, of the step under way
};

}  // namespace yoke::deepspeed_stub
