// Passes the state of this rank to a visitor, piece by piece. The pieces of all ranks together
// cover the same tensors for every layout, so a checkpoint that one layout saved can be loaded by
// a different one.
#pragma once

#include "plugins/ptd/optim/optimizer.hpp"
#include "plugins/ptd/state/shard_state.hpp"

namespace yoke::ptd {

// This rank's indices among the ranks that hold the same pieces. YokePiece.replica is computed from
// them.
struct StateRank {
  // Index among the ranks that hold the same shard, and their number.
  int replica, replicas;
  // Index among the ranks of tp, and their number. They hold the same tp-replicated parameters.
  int tp, tp_size;
  int world;  // index in the world; rank 0 owns the step count
};

// Visits, for each unit and parameter, the piece "param" and, if the parameter is trainable, one
// piece per moment; then the scalar "step". A piece is the part of the parameter that lies in this
// rank's shard. If tensor parallelism cuts the parameter, that part may need two pieces. For
// YOKE_CHECKPOINT_LOAD the visitor writes into the pieces. Not collective. Throws the visitor's
// Error.
void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const ShardState& state,
                 Optimizer& optimizer,
                 const std::vector<ParamCut>& cuts,
                 const StateRank& rank);

}  // namespace yoke::ptd
