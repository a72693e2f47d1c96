// The state of a replica as the pieces of a checkpoint. They do not depend on the world size.
#pragma once

#include "plugins/accelerate_compat/ddp/optimizer.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"

namespace yoke::accelerate_compat {

// Calls args.visit for each parameter with the piece "param" and, if it is trainable, one piece per
// moment, all of them whole tensors; then for the scalar "step". All ranks hold the same state, so
// rank 0's pieces are written and the others are replicas. On YOKE_CHECKPOINT_LOAD the visitor
// fills the pieces; the caller must publish the parameters then. Throws what the visitor returns as
// an error. Not collective.
void visit_state(const YokeCheckpointArgs& args,
                 const Parameters& parameters,
                 Optimizer& optimizer,
                 int rank);

}  // namespace yoke::accelerate_compat
