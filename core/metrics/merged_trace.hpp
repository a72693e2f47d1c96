// Joins the traces that the ranks of a run have written (profile.steps) into one. No LibTorch.
#pragma once

#include <map>
#include <string>

namespace yoke {

// Returns the trace files of a run folder by rank: profile/rank_NNN.json. Empty if there are none.
std::map<int, std::string> trace_files(const std::string& run_dir);

// Returns one trace in the same format, with a process "rank N" for each rank and its steps named
// "step N", on the clock of the first rank. Each GPU of a rank is a further process of this name,
// with a label. The clocks of different machines are not adjusted. Throws Error(DATA_LOSS), naming
// the file that is no trace.
std::string merge_traces(const std::map<int, std::string>& files);

}  // namespace yoke
