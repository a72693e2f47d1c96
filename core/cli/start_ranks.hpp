// Starts the ranks of a run on this machine, and starts them again after a failure.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/launch/launcher.hpp"
#include "core/launch/restart_policy.hpp"

namespace yoke {

// The machines of a run, each with its own `yoke train`.
struct Machines {
  int count = 1;
  int index = 0;     // number of this machine; rank 0 is on machine 0
  std::string host;  // address of machine 0, where the ranks meet
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
};

// Starts the ranks of this machine, attempt by attempt. One thread.
class RankStarter {
 public:
  // Prints how many ranks and threads will run.
  RankStarter(RankStart start, int restarts);

  // Starts all ranks once, and returns the exit code of launch_ranks(). Throws Error(INTERNAL) if a
  // process cannot be started. `start` may be changed between two attempts.
  int launch(const StopOrder& stop = {});
  // Returns true if a signal of the user has ended the last attempt.
  bool signalled() const { return signalled_; }
  // Returns how long to wait before the next attempt; empty: there is none, and give_up_reason()
  // says why.
  std::optional<std::chrono::milliseconds> pause_after(int exit_code);
  const std::string& give_up_reason() const { return policy_.reason(); }
  // Lets the next attempt continue from the newest checkpoint, and prints that.
  void continue_from_newest();
  // Prints where the logs are if the run has failed, and how to continue it if a rank was lost.
  void print_end(int exit_code) const;

  RankStart start;

 private:
  const std::vector<std::pair<std::string, std::string>> variables_;
  RestartPolicy policy_;
  bool signalled_ = false;
};

// Tells the other machines that this one does not take part, or makes no further attempt; otherwise
// they would wait for it until launch.join_timeout. ranks: number of ranks on each machine. Never
// throws.
void decline(const Machines& machines, int ranks, const std::string& why) noexcept;

// Prints "yoke: TEXT" to stderr.
void print_message(const std::string& text);

// Runs all ranks and returns the exit code of the run (launch_ranks()). A restart continues from
// the newest checkpoint of the run folder. Throws Error(INTERNAL) if a process cannot be started.
// restarts: how often to start the run again after the loss of a rank.
int start_ranks(const RankStart& start, int restarts);

}  // namespace yoke
