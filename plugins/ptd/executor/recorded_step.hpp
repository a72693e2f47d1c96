// Records training steps as device graphs (CUDA graphs). A step is first issued a few times as
// usual, then recorded once, then replayed. For a replay the CPU only copies the inputs and
// launches the graph.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "yoke/torch_device.hpp"

namespace yoke::ptd {

// Owns the graphs of one executor. Used by one thread at a time.
class RecordedSteps {
 public:
  // Issues all the work of a step on these inputs, one entry per micro-batch, without waiting for
  // it.
  using Issue = std::function<void(const std::vector<TorchInputs>& inputs)>;

  // graphs: the host's service, which must outlive this object.
  explicit RecordedSteps(const TorchGraphs& graphs) : graphs_(graphs) {}

  // Does the work of issue() on a copy of the inputs. Steps whose inputs have the same shapes share
  // a graph. Any other value that differs between steps must be in a tensor that is written before
  // this call. before_recording is called before a graph is recorded. Memory that issue() uses
  // after that must not be freed, because every replay reads and writes it.
  void run(const std::vector<TorchInputs>& inputs,
           const Issue& issue,
           const std::function<void()>& before_recording);

 private:
  using Shapes = std::vector<std::vector<int64_t>>;
  struct Step {
    std::vector<TorchInputs> inputs;  // tensors from which the graph reads its inputs
    int usual_runs = 0;               // number of runs so far without a graph
    std::unique_ptr<DeviceGraph> graph;
  };

  Step& step_for(const std::vector<TorchInputs>& inputs);

  const TorchGraphs& graphs_;
  std::map<Shapes, Step> steps_;
};

// Returns the host's service. Throws Error(INVALID_ARGUMENT) if it has none, which means that the
// run computes on the CPU.
const TorchGraphs& graphs_of(const YokeHost& host);

}  // namespace yoke::ptd
