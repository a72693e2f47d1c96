// Passes the state of a replica to a checkpoint, piece by piece. The pieces do not depend on the
// world size.
#pragma once

#include "plugins/accelerate_compat/ddp/optimizer.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"

namespace yoke::accelerate_compat {

// Calls args.visit for each parameter with the piece "param" and, if it is trainable, one piece per
// moment; then with the scalar "step". Every piece is a whole tensor. All ranks have the same
// state, so rank 0's pieces are written and the others are replicas. On YOKE_CHECKPOINT_LOAD the
// visitor fills the pieces; the caller must then call Parameters::publish. Throws the error that
// the visitor returns. Not collective.
void visit_state(const YokeCheckpointArgs& args,
                 const Parameters& parameters,
                 Optimizer& optimizer,
                 int rank);

}  // namespace yoke::accelerate_compat
