// Carries out a schedule, action by action. Start reading at Executor::run in the .cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <vector>

#include "plugins/ptd/comms.hpp"
#include "plugins/ptd/executor/recorded_step.hpp"
#include "plugins/ptd/executor/sharded_unit.hpp"
#include "plugins/ptd/executor/stream_wait.hpp"
#include "plugins/ptd/mesh.hpp"
#include "plugins/ptd/optim/optimizer.hpp"
#include "plugins/ptd/optim/param_squares.hpp"
#include "plugins/ptd/state/shard_state.hpp"
#include "sdk/mesh/dtensor/model_on_mesh.hpp"
#include "sdk/mesh/executor/block_runner.hpp"
#include "sdk/mesh/executor/stage_messages.hpp"
#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::ptd {

// The engine of one rank for one model. It is used by one thread at a time.
class Executor {
 public:
  struct Parts {
    const YokeHost& host;
    const TorchModel& model;
    const ModelSpec& params;         // the blocks of this rank
    const std::vector<int>& blocks;  // their indices in the model, ascending
    const ShardState& state;
    ModelOnMesh* model_on_mesh;  // nullptr: all tensors are plain
    const Comms& comms;
    Optimizer& optimizer;
    // Specs of all ranks along pp; specs[rank] is that of this rank. micros and forward_only are
    // overwritten for each step.
    std::vector<StepSpec> specs;
    int rank;
    const Fp8Params* fp8;       // how the host rounds to fp8; nullptr if it rounds nothing
    double clip;                // bound of the gradient norm; 0 = none
    const TorchGraphs* graphs;  // records and replays training steps; nullptr: not used
  };

  // All parts must outlive the executor.
  explicit Executor(Parts parts);

  // Builds and checks the training and evaluation lists of all ranks along pp for `micros`
  // micro-batches. Returns the training list of this rank, which the executor owns. Does not
  // communicate. Throws Error(INTERNAL) if a list is wrong.
  const std::vector<Action>& check(int micros);

  // Runs a training or evaluation step. Collective. If it throws, the parameters are those before
  // the step, unless the update itself failed. If a collective was in flight, every further step
  // throws Error(FAILED_PRECONDITION).
  YokeStepResult step(const YokeStepArgs& args);

  // Must be called when anything but the optimizer writes the master copies between two steps.
  void params_change() { copies_are_stale_ = true; }

  // Returns the bytes of parameters that are kept in the compute type or in fp8, in addition to the
  // master copies.
  int64_t copy_bytes() const;
  // Returns the bytes of gradients that are kept in addition to the gradient shards.
  int64_t second_gradient_bytes() const;

 private:
  // The destination of the gradient of a block's parameter: a unit, and a slot of its FlatLayout.
  struct Sink {
    int unit;
    size_t slot;
    bool second = false;  // true: the second gradient buffer of the parameter
  };
  // The sums of the block whose backward runs.
  struct Sums final : GradientSums {
    explicit Sums(Executor& its_executor) : executor(its_executor) {}
    Sum* of(const at::Tensor& weight) override;
    Executor& executor;
    int block = 0;
  };
  // The number of micro-batches, and whether the step is forward only.
  using Key = std::pair<int, bool>;

  const StepSpec& own_spec() const { return parts_.specs[parts_.rank]; }
  // Returns the mesh of distributed tensors; nullptr if all tensors are plain.
  Mesh* mesh() const {
    return parts_.model_on_mesh != nullptr ? &parts_.model_on_mesh->mesh() : nullptr;
  }
  void make_units(const ModelSpec& params);
  const std::vector<Action>& schedule(int micros, bool forward_only);
  // Returns true if work is queued on a stream: then the host reads no result before the end of the
  // step.
  bool on_stream() const { return parts_.host.stream != nullptr; }
  void take_batch(const YokeStepArgs& args);
  void issue(const std::vector<TorchInputs>& inputs);
  void run(const Action& action);
  void forward(const Action& action);
  void backward(const Action& action);
  bool computes_loss() const;
  void exchange_tied(const Action& action);
  void reduce_partial_grads();
  void reduce_scalars(bool with_norm);
  void read_results();
  void require_not_cancelled() const;
  void update();
  void abandon_step();

  Parts parts_;
  DevicePool pool_;
  std::vector<ShardedUnit> units_;
  std::vector<Fp8Shard*> fp8_shards_;     // those of the units that are gathered in fp8
  std::vector<std::vector<Sink>> sinks_;  // one list per block
  Sums sums_{*this};
  BlockRunner blocks_;
  StageMessages messages_;
  std::map<Key, std::vector<Action>> schedules_;
  std::optional<RecordedSteps> recorded_;
  std::optional<ParamSquares> param_squares_;  // empty unless sums are exact
  bool copies_are_stale_ = true;               // ShardState::copies must be written before a step
  bool broken_ = false;                        // a step failed while a collective was in flight
  StreamWait stream_wait_{[this] { require_not_cancelled(); }};

  // These belong to the step in progress.
  std::vector<TorchInputs> inputs_;       // one per micro-batch
  std::vector<TorchInputs> distributed_;  // the parts of inputs_ that the blocks get
  at::Tensor num_targets_;   // fp64 scalar: targets in inputs_; 0 if another rank counts them
  double loss_scale_ = 1;    // factor of the loss
  at::Tensor device_scale_;  // fp64 scalar: the same number; undefined unless in fp16
  at::Tensor loss_grad_;     // fp64 scalar: loss scale / number of targets on all ranks
  bool forward_only_ = false;
  // fp64 [3]: loss sum, number of targets, squared gradient norm. With exact sums, the sum of
  // squares of each parameter of the model follows.
  at::Tensor scalars_;
  at::Tensor results_;  // the first of them in memory of the host
  YokeStepResult result_{};
};

}  // namespace yoke::ptd
