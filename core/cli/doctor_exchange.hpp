// What the ranks of `yoke doctor --nodes` tell each other once they have met.
#pragma once

#include <cstdint>
#include <string>

#include "core/control/member.hpp"
#include "core/control/secret.hpp"
#include "core/launch/compare_machines.hpp"

namespace yoke {

// A rank and what it knows before the exchange.
struct DoctorRank {
  int32_t rank = 0, world_size = 1;
  MachineFacts facts;  // all except secret and run_dir_fault
  Secret secret;
  std::string run_dir;  // "" = not checked
};

// All functions are collective. Each of their waits has a limit. They throw Error: UNAVAILABLE if a
// rank is lost, DEADLINE_EXCEEDED, DATA_LOSS if another version of Yoke takes part.

// Collects the facts of all ranks, and measures clocks and network between the machines. Returns
// the result on rank 0; on other ranks it is incomplete.
MachineReports exchange_reports(Member& member, DoctorRank self);

// Returns the exit code of rank 0.
int exchange_exit_code(Member& member, const DoctorRank& self, int code);

}  // namespace yoke
