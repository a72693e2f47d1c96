// Shows the state of this rank to a visitor, piece by piece; independent of the world size.
#pragma once

#include "plugins/accelerate_compat/ddp/optimizer.hpp"
#include "plugins/accelerate_compat/ddp/parameters.hpp"

namespace yoke::accelerate_compat {

// For each parameter the pieces "param" and, if it is trained, one per moment, all whole; then the
// scalar "step". All ranks hold the same: the first one's pieces are those to write.
void visit_state(const YokeCheckpointArgs& args,
                 const Parameters& parameters,
                 Optimizer& optimizer,
                 int rank);

}  // namespace yoke::accelerate_compat
