// Compares the reports that the ranks of a run have left because the run hung.
#pragma once

#include <string>

namespace yoke {

// Returns what the files logs/hang_rank_*.json of a run folder say together: which ranks are
// behind, and where they are. Returns "" if there are none. Throws Error(DATA_LOSS) for a damaged
// file.
std::string hang_summary(const std::string& run_dir);

}  // namespace yoke
