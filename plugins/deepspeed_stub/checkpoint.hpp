// Shows the state of this rank to a visitor, piece by piece; the pieces of all ranks make up the
// same tensors at every ZeRO stage and world size.
#pragma once

#include "plugins/deepspeed_stub/optimizer.hpp"
#include "plugins/deepspeed_stub/weights.hpp"

namespace yoke::deepspeed_stub {

// Replica numbers of what this rank keeps: 0 = its copy is the one to write.
struct Replicas {
  int64_t trainable, frozen, step;
};

void visit_state(const YokeCheckpointArgs& args,
                 const YokeModelSummary& model,
                 const Weights& weights,
                 Optimizer& optimizer,
                 const Replicas& replicas,
                 const YokeDevice& device);

}  // namespace yoke::deepspeed_stub
