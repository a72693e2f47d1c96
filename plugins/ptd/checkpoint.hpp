// Shows the state of this rank to a visitor, piece by piece; independent of the world size.
#pragma once

#include "plugins/ptd/optim/optimizer.hpp"
#include "plugins/ptd/shard_state.hpp"

namespace yoke::ptd {

// For each unit and parameter the pieces "param" and, if trainable, one per moment; then the scalar
// "step". A piece is the part of the parameter that lies in this rank's shard. replica: coordinate
// on dp_replicate, whose ranks hold the same pieces; rank: of this process, whose first one owns
// the step.
void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const ShardState& state,
                 Optimizer& optimizer,
                 int replica,
                 int rank);

}  // namespace yoke::ptd
