// A model that is trained with ZeRO. The engine combines weights, gradients and optimizer, and runs
// the steps.
#pragma once

#include <memory>
#include <vector>

#include "plugins/deepspeed_stub/gradients.hpp"
#include "plugins/deepspeed_stub/optimizer.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// The state that all models of one context share. It is created once, in `init`.
struct Environment {
  // Reads the ds_config again, opens the device and creates the communicators. Collective over the
  // world. Throws Error(UNIMPLEMENTED) if the plugin has no kernels for the device, and
  // Error(FAILED_PRECONDITION) if a folder for offload cannot be used.
  explicit Environment(const YokeInitArgs& args);

  const YokePlan& plan;  // the completed plan
  const YokeHost& host;
  const DsConfig config;
  const OffloadSettings offload;
  const Device device;
  const Device cpu;
  const std::unique_ptr<FileIo> io;  // NULL unless offload uses files
  const Comms comms;
};

// One wrapped model on one rank. It may be used by one thread at a time.
class Engine final : public Wrapped {
 public:
  // Allocates this rank's share of parameters, gradients and moments, and sets the parameters to
  // their initial values. model and environment must outlive the engine. Collective.
  Engine(const YokeModel& model, const Environment& environment);

  YokeWrapResult wrap_result() const override;

  // Collective. Throws Error(CANCELLED) if the host cancelled the run, Error(INVALID_ARGUMENT) if
  // the number of targets that the losses cover differs from the number that the batch claims, and
  // any error of the model. In all these cases parameters and moments are unchanged, and further
  // steps can be run.
  YokeStepResult step(const YokeStepArgs& args) override;

  // Passes this rank's state to args.visit, piece by piece. A load then distributes the new values,
  // which is collective.
  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  // The state of a block between its forward and its backward.
  struct BlockState {
    void* saved = nullptr;  // handle of the model; consumed by block_backward or drop_saved
    ManagedTensor carry;    // output of the block
  };
  // Returns whether a training step rounds each weight to fp8 only once.
  bool keeps_roundings(int64_t micros) const;
  void run_micro_batch(const YokeMicroBatch& micro, double loss_grad, bool training);
  void forward(const YokeMicroBatch& micro, bool training);
  void backward(double loss_grad);
  void drop_blocks();
  void check_cancel() const;
  void reduce_totals(const UpdateRule& rule, bool training);
  void update(int64_t step, double lr);
  StepTotals read_totals(double claimed_targets) const;
  StepTotals* totals() const { return static_cast<StepTotals*>(totals_.span().data); }

  const YokeModel& model_;
  const Environment& environment_;
  const YokeOptimizer& config_;
  const ModelSpec spec_;
  const Settings settings_;
  const Setup setup_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Gradients> gradients_;
  Optimizer optimizer_;
  std::vector<BlockState> blocks_;
  double loss_ = 0;     // sum over this rank's targets in the current step
  double targets_ = 0;  // number of this rank's targets in the current step
  const Array totals_;  // one StepTotals of the current step, in memory of the device
};

}  // namespace yoke::deepspeed_stub
