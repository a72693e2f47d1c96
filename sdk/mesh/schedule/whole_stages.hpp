// Decides when a rank reshards a stage, and reduces its gradients, if only some of its stages may
// be unsharded at a time. No side effects.
#pragma once

#include <cstddef>
#include <vector>

namespace yoke::mesh {

// Returns, for each stage, the positions in stage_of_use, ascending, before which it is evicted, so
// that at most `most` stages are unsharded at a time. Evicts the stage whose next use is furthest
// (Belady's rule), which leads to the fewest gathers. No stage is evicted at the end. stage_of_use:
// the stage of each use, 0 to stages - 1; -1 = none. most: at least 1.
std::vector<std::vector<size_t>> evictions(const std::vector<int>& stage_of_use,
                                           int stages,
                                           int most);

}  // namespace yoke::mesh
