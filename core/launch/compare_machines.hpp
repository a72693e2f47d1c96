// Findings about the machines of a run, from the facts of all ranks and from measurements between
// the machines. Pure functions. No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/launch/machine_check.hpp"
#include "core/launch/machine_facts.hpp"
#include "core/launch/pair_probe.hpp"

namespace yoke {

// One machine: its name, which gets a number if several machines share it, and its ranks.
struct Machine {
  std::string name;
  std::vector<int32_t> ranks;
};

// What all ranks have reported, in the order of the ranks, and what was measured.
struct MachineReports {
  std::vector<MachineFacts> facts;
  std::string master_addr;
  std::string run_dir;              // "" = not checked
  std::vector<double> clock_ahead;  // seconds by which each machine is ahead of the first one
  std::vector<PairResult> pairs;    // all ordered pairs of different machines
};

// Returns the machines in the order of their first ranks.
std::vector<Machine> machines_of(const std::vector<MachineFacts>& facts);

// Returns all findings, in the order in which they are printed.
std::vector<MachineFinding> compare_machines(const MachineReports& reports);

// Returns the findings about the network: one for each pair, or one for all if there are many
// machines and all pairs are alike.
std::vector<MachineFinding> check_pairs(const std::vector<Machine>& machines,
                                        const MachineReports& reports);

}  // namespace yoke
