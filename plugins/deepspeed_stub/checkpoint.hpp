// The state of one rank as the pieces of a checkpoint.
#pragma once

#include "plugins/deepspeed_stub/optimizer.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Replica numbers of the pieces of this rank. The copy with number 0 is the one that is written.
struct Replicas {
  int64_t trainable;  // number for trainable parameters and their moments
  int64_t frozen;     // number for frozen parameters
  int64_t step;       // number for the step count
};

// Calls args.visit for every piece that this rank keeps: "param", "exp_avg" and "exp_avg_sq" of
// trainable parameters, "param" of frozen ones, then the scalar "step". Pieces are ranges of whole
// tensors, so the pieces of all ranks make up the same tensors at every ZeRO stage and world size.
// On YOKE_CHECKPOINT_LOAD the visitor fills the pieces; the caller must refresh the weights then.
// Throws what the visitor returns as an error. Not collective.
void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const Weights& weights,
                 Optimizer& optimizer,
                 const Replicas& replicas,
                 const YokeDevice& device);

}  // namespace yoke::deepspeed_stub
