// Passes the state of one rank to a checkpoint, piece by piece.
#pragma once

#include "plugins/deepspeed_stub/optimizer.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Replica numbers of this rank's pieces. Of several copies of a piece, the one with number 0 is
// written.
struct Replicas {
  int64_t trainable;  // number for trainable parameters and their moments
  int64_t frozen;     // number for frozen parameters
  int64_t step;       // number for the step count
};

// Calls args.visit for every piece that this rank keeps: "param" and the moments of trainable
// parameters, "param" of frozen ones, then the scalar "step". Pieces are ranges of whole tensors,
// so the pieces of all ranks make up the same tensors at every ZeRO stage and world size. On
// YOKE_CHECKPOINT_LOAD the visitor fills the pieces; the caller must then call Weights::refresh.
// State in files is read, and after a load written, one piece at a time. Throws the error that the
// visitor returns. Not collective.
void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const Weights& weights,
                 Optimizer& optimizer,
                 const Replicas& replicas,
                 const Setup& setup);

}  // namespace yoke::deepspeed_stub
