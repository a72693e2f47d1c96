// Runs with --nnodes MIN:MAX: the launchers of all machines agree on who takes part in each
// attempt.
#pragma once

#include <functional>
#include <string>

#include "core/cli/start_ranks.hpp"
#include "core/config/run_config.hpp"
#include "core/control/introduction.hpp"

namespace yoke {

struct ElasticStart {
  // start.machines is set: its count is MAX, its index the number of this machine, and its port
  // that of rank 0. The launchers meet at the next port.
  RankStart start;
  int min = 1;        // MIN
  int restarts = 0;   // number of restarts that follow the loss of a rank
  bool saves = true;  // checkpoint.every > 0
  LaunchConfig launch;
  Introduction facts;  // values that must be the same on all machines
  // Makes the plan for a number of machines; only machine 0 calls it. run_dir: folder of the run;
  // "" = the plan chooses it. Throws Stop.
  std::function<RankStart(int machines, const std::string& run_dir)> plan;
};

// Runs the ranks of this machine in one attempt after the other, with the machines that are there,
// and returns the exit code of the run. Throws Stop if the plan cannot be made or if machine 0
// cannot listen, and Error(INTERNAL) if a process cannot be started; the other machines learn why.
int run_elastic(const ElasticStart& start);

// Tells the other machines that this one cannot take part. machines: as in ElasticStart. Never
// throws. Machine 0 serves the others for at most five seconds.
void decline_elastic(const Machines& machines, const std::string& why) noexcept;

}  // namespace yoke
