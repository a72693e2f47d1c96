// Starts the ranks of a run on this machine, and starts them again after a failure.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace yoke {

// The machines of a run, each with its own `yoke train`.
struct Machines {
  int count = 1;
  int index = 0;     // of this machine; rank 0 is on machine 0
  std::string host;  // of machine 0, where the ranks meet
  int port = 0;
  std::string job;  // name of the run, the same on all machines
};

struct RankStart {
  std::string worker;                // path of the worker program
  int ranks = 1;                     // on this machine
  bool threads = false;              // as threads of one process
  std::optional<Machines> machines;  // empty = this machine only
  std::string run_dir;               // "" = rank 0, on another machine, chooses the run folder
  std::string resume;                // checkpoint to start from; "" = none
  std::vector<std::string> config;   // path of the run file, and overrides
  int restarts = 0;                  // how often to start the run again after the loss of a rank
};

// Tells the other machines that this one does not take part, or makes no further attempt; otherwise
// they would wait for it until launch.join_timeout. ranks: number of ranks on each machine. Never
// throws.
void decline(const Machines& machines, int ranks, const std::string& why) noexcept;

// Prints "yoke: TEXT" to stderr.
void print_message(const std::string& text);

// Runs all ranks and returns the exit code of the run (launch_ranks()). A restart continues from
// the newest checkpoint of the run folder. Throws Error(INTERNAL) if a process cannot be started.
int start_ranks(const RankStart& start);

}  // namespace yoke
