// Sees what a step feeds to the model and how the loss is scaled on the way back, whichever backend
// drives the blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/verify/rank_report.hpp"
#include "yoke/model.hpp"

namespace yoke {

// A number for every sequence of a micro-batch, equal for equal contents. With tokens and
// positions, the numbers of slices of a sequence add up (modulo 2^64) to the number of the
// sequence. Nothing if a tensor has no memory that can be read.
std::optional<std::vector<uint64_t>> fingerprints(const TorchInputs& inputs);

// One per model, on the thread that runs the model.
class InputProbe {
 public:
  // Before a host takes the list: puts itself into the first and the last block.
  void watch(BlockList& list);
  // Costs a look at a flag per block outside of start() and stop().
  void start();
  void stop(RankReport& report);  // fills fed, blind and losses

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace yoke
