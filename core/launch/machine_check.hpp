// Is this machine fit for a run? One finding per question, each with its cause and what to do about
// it. Looks and tries, changes nothing. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/launch/environment.hpp"

namespace yoke {

struct MachineFinding {
  enum Status { kOk, kWarning, kProblem };

  std::string what;  // "shared memory"
  Status status = kOk;
  std::string found;  // and, if not ok, why that is bad
  std::string fix;    // a command or what to change; "" = nothing to do
};

MachineFinding check_cores(const GetVariable& get);
MachineFinding check_memory();
// A folder in memory; containers often give it 64 MiB.
MachineFinding check_shared_memory(const std::string& folder = "/dev/shm");
MachineFinding check_disk(const std::string& folder);
MachineFinding check_open_files();
// The folder through which the ranks of one machine meet.
MachineFinding check_rendezvous_folder();
// A connection to this machine itself, as the ranks of a run make it.
MachineFinding check_loopback();
// The address of its own name, which Gloo connects to when no interface is named.
MachineFinding check_host_name(const GetVariable& get);
// MASTER_ADDR and MASTER_PORT, if they are set.
MachineFinding check_rendezvous_address(const GetVariable& get);
// Logs and traces of several machines only line up if their clocks agree.
MachineFinding check_clock();
// Needed by authors of backends and models only.
MachineFinding check_compiler(const std::string& command);

}  // namespace yoke
