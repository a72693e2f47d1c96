// Observes what a step passes to the model and how the gradient of the loss is scaled, whichever
// backend runs the blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/verify/rank_report.hpp"
#include "yoke/model.hpp"

namespace yoke {

// Returns one number per sequence of a micro-batch, equal for equal contents. If the inputs have
// tokens and positions, a sequence may be cut into parts, as context parallelism does: the numbers
// of the parts add up (modulo 2^64) to the number of the whole sequence. Returns nothing if the
// memory of a tensor cannot be read on the CPU.
std::optional<std::vector<uint64_t>> fingerprints(const TorchInputs& inputs);

// One per model, used by the thread that runs the model.
class InputProbe {
 public:
  // Wraps the forward functions of the first and the last block. Call it before the list is passed
  // to a TorchModelHost. Outside of start() and stop() the wrappers only test a flag.
  void attach(BlockList& list);
  // Starts observing.
  void start();
  // Stops observing and fills the fields received, unreadable and losses of the report.
  void stop(RankReport& report);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the wrapped blocks
};

}  // namespace yoke
