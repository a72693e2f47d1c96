// What the command line of `yoke train` asks for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/cli/start_ranks.hpp"
#include "core/cli/stop.hpp"

namespace yoke {

inline constexpr int kMostRanks = 4096;

// Returns the number that follows a flag; empty if text is "", the flag was not given. what: the
// plural of what is counted, "ranks". Throws Stop if it is not a number from min to max.
std::optional<int> count_of(
    const std::string& flag, const std::string& text, const std::string& what, int min, int max);

// The values of --nnodes MIN:MAX; of --nnodes M, both are M.
struct NumMachines {
  int min = 1, max = 1;
  bool elastic = false;  // MIN:MAX was given
};

struct Request {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<int> nproc;
  std::optional<int> virtual_ranks;
  std::optional<NumMachines> nnodes;
  std::optional<int> node_rank;
  std::string master;  // "HOST:PORT" of machine 0
  int restarts = 0;
  std::string trace_abi;  // file for the calls across the contract; "" = none
};

// The flags as they were given; "" = not given.
struct TrainFlags {
  std::string nproc, virtual_ranks, nnodes, node_rank, restarts;
};

// Stores the numbers of the flags in `request`. Throws Stop if one of them is wrong.
void read_flags(const TrainFlags& flags, Request& request);

// Returns the machines that the flags describe, with the largest number of them; empty: this
// machine only. Throws Stop.
std::optional<Machines> machines_of(const Request& request);

}  // namespace yoke
