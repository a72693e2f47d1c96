// What a rank knows about itself when the run hangs: where its threads are, and which collectives it
// has issued.
#pragma once

#include <string>

#include "core/comm/world.hpp"

namespace yoke {

// Writes <run folder>/logs/hang_rank_RRR.json, which `yoke doctor RUN` compares with those of the
// other ranks. May be called from any thread while the rank trains. Throws Error.
void write_hang_report(const std::string& run_dir, const World& world, const std::string& cause);

}  // namespace yoke
