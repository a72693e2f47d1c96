// What a rank knows about itself when the run hangs: where its threads are, and which collectives
// it has issued.
#pragma once

#include <string>

#include "core/comm/world.hpp"

namespace yoke {

// Writes <run folder>/logs/hang_rank_RRR.json, which `yoke doctor RUN` compares with those of the
// other ranks. May be called while the rank trains, from one other thread at a time. Throws Error
// if the file cannot be written, and what thread_stacks() throws.
void write_hang_report(const std::string& run_dir, const World& world, const std::string& cause);

}  // namespace yoke
