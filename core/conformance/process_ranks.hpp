// Ranks as processes, for checks.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace yoke {

// The body of one rank, which receives its number and the path of the socket at which the ranks
// meet.
using ProcessRank = std::function<std::string(int32_t rank, const std::string& socket)>;

// Runs body in a copy of this process for each rank, and returns what the bodies return, by rank.
// This process must have a single thread. If a rank fails, the others are ended. Throws
// conformance::Failed with the exception of the first rank that failed, or with the signal that
// ended it.
std::vector<std::string> run_process_ranks(int32_t ranks, const ProcessRank& body);

}  // namespace yoke
