// Which stages of a rank stay whole if not all of them may. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace yoke::ptd {

// Decides when stages leave memory if at most `most` of them may be whole at a time: when another
// stage is needed, the one that is needed again last has to go (Belady's rule, which leads to the
// fewest gathers). stage_of_use: the stage, 0 to stages - 1, of each use in order; -1 = none.
// Returns, for each stage, the uses before which it leaves, ascending; it does not leave at the end.
std::vector<std::vector<size_t>> departures(const std::vector<int>& stage_of_use,
                                            int stages,
                                            int most);

}  // namespace yoke::ptd
