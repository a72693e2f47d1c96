// Shows the state of this rank to a visitor, piece by piece; independent of the world size.
#pragma once

#include "plugins/ptd/optim/optimizer.hpp"
#include "plugins/ptd/state/shard_state.hpp"

namespace yoke::ptd {

// For each unit and parameter the pieces "param" and, if trainable, one per moment; then the scalar
// "step". A piece is the part of the parameter that lies in this rank's shard, one or two runs of
// it where tensor parallelism cuts it.
struct StateRank {
  int replica;      // of several ranks that hold the same shards
  int tp, tp_size;  // of several ranks that hold the same of what is not cut
  int world;        // the first one owns the step
};
void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const ShardState& state,
                 Optimizer& optimizer,
                 const std::vector<ParamCut>& cuts,
                 const StateRank& rank);

}  // namespace yoke::ptd
