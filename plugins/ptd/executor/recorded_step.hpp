// Whole steps as graphs of a device: issued some times as usual, then recorded once, then repeated.
// Of a step that is repeated the CPU does nothing but copy its inputs and start it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "yoke/torch.hpp"

namespace yoke::ptd {

class RecordedSteps {
 public:
  // Issues all the work of a step on these inputs (by micro-batch) and waits for none of it.
  using Issue = std::function<void(const std::vector<TorchInputs>& inputs)>;

  // The graphs come from the host and outlive this.
  explicit RecordedSteps(const TorchGraphs& graphs) : graphs_(graphs) {}

  // Does the work of issue(). Steps whose inputs have the same shapes share a graph; what else
  // differs between steps must be in tensors that are written before. before_recording: what is
  // allocated from there on may be read and written by every repetition.
  void run(const std::vector<TorchInputs>& inputs,
           const Issue& issue,
           const std::function<void()>& before_recording);

 private:
  using Shapes = std::vector<std::vector<int64_t>>;
  struct Step {
    std::vector<TorchInputs> inputs;  // where the graph reads them
    int usual_runs = 0;
    std::unique_ptr<DeviceGraph> graph;
  };

  Step& step_for(const std::vector<TorchInputs>& inputs);

  const TorchGraphs& graphs_;
  std::map<Shapes, Step> steps_;
};

// The service of the host. Throws Error(INVALID_ARGUMENT) if it has none.
const TorchGraphs& graphs_of(const YokeHost& host);

}  // namespace yoke::ptd
