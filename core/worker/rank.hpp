// Runs one rank or all ranks of a run: makes the job, connects, trains, and writes exit.json.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"

namespace yoke {

using Families = std::map<std::string, Family>;

// What `yoke` passes to the ranks of a run.
struct RankArguments {
  std::string config;
  std::vector<std::string> overrides;
  RunPlace place;         // dir "" = rank 0 chooses
  bool terminal = false;  // true if the output of rank 0 is shown on a terminal
};

// Trains as one rank of a run whose ranks are processes. machines: machines that start equally many
// ranks each; 0 = unknown. Returns the exit code. Collective. Throws Error.
int run_process(const RankArguments& arguments,
                const Rendezvous& rendezvous,
                int32_t local_rank,
                int32_t machines,
                const Families& families);

// Trains as all ranks of a run, each a thread of this process. Returns the exit code of the rank
// that failed first. Throws Error.
int run_threads(const RankArguments& arguments, int32_t world_size, const Families& families);

// Runs body and returns what it returns. If body throws, prints the exception to stderr, after
// `prefix`, and returns the exit code for it. Thread-safe.
int guarded(const std::function<int()>& body, const char* prefix = "yoke: ");

}  // namespace yoke
