// A graph contains the device work that the actions issue. To record it, the executor runs its
// action list once as usual; actions contain no code for recording. The graph always reads its
// inputs at the addresses that were used during recording, so every step first copies its inputs
// there.
#include "plugins/ptd/executor/recorded_step.hpp"

#include <ATen/ops/empty_like.h>

namespace yoke::ptd {
namespace {

// In the first steps libraries initialise themselves and memory pools fill. None of that may be
// recorded, so these steps run without a graph.
constexpr int kUsualRuns = 3;

}  // namespace

// Returns the step for inputs of these shapes. If there is none, makes one with its own input
// tensors.
RecordedSteps::Step& RecordedSteps::step_for(const std::vector<TorchInputs>& inputs) {
  Shapes shapes;
  for (const TorchInputs& micro : inputs) {
    for (const auto& [role, tensor] : micro) shapes.push_back(tensor.sizes().vec());
    shapes.push_back({-1});  // end of a micro-batch
  }
  Step& step = steps_[shapes];
  if (!step.inputs.empty()) return step;
  for (const TorchInputs& micro : inputs) {
    TorchInputs& own = step.inputs.emplace_back();
    for (const auto& [role, tensor] : micro) own.emplace_back(role, at::empty_like(tensor));
  }
  return step;
}

void RecordedSteps::run(const std::vector<TorchInputs>& inputs,
                        const Issue& issue,
                        const std::function<void()>& before_recording) {
  Step& step = step_for(inputs);
  for (size_t m = 0; m < inputs.size(); ++m) {
    for (size_t i = 0; i < inputs[m].size(); ++i)
      step.inputs[m][i].second.copy_(inputs[m][i].second, /*non_blocking=*/true);
  }
  if (!step.graph && step.usual_runs < kUsualRuns) {
    ++step.usual_runs;
    return issue(step.inputs);
  }
  if (!step.graph) {
    before_recording();
    std::unique_ptr<DeviceGraph> graph = graphs_.make(graphs_.ctx);
    graph->begin();
    issue(step.inputs);
    graph->end();
    step.graph = std::move(graph);
  }
  step.graph->replay();
}

const TorchGraphs& graphs_of(const YokeHost& host) {
  const YokeHeader* service =
      host.get_service(host.ctx, "yoke.torch_graphs/1", sizeof(TorchGraphs));
  if (service == nullptr)
    throw Error(YOKE_INVALID_ARGUMENT,
                "ptd.cuda_graph = true, but this run computes on the CPU; allowed there: false");
  return *reinterpret_cast<const TorchGraphs*>(service);
}

}  // namespace yoke::ptd
