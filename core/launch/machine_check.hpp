// Is this machine fit for a run? One finding per question, each with its cause and what to do about
// it. Looks and tries, changes nothing. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/launch/environment.hpp"

namespace yoke {

struct Finding {
  enum Verdict { kOk, kWarning, kProblem };

  std::string what;  // "shared memory"
  Verdict verdict = kOk;
  std::string found;  // and, if not ok, why that is bad
  std::string fix;    // a command or what to change; "" = nothing to do
};

Finding check_cores(const GetVariable& get);
Finding check_memory();
// A folder in memory; containers often give it 64 MiB.
Finding check_shared_memory(const std::string& folder = "/dev/shm");
Finding check_disk(const std::string& folder);
Finding check_open_files();
// The folder through which the ranks of one machine meet.
Finding check_rendezvous_folder();
// A connection to this machine itself, as the ranks of a run make it.
Finding check_loopback();
// The address of its own name, which Gloo connects to when no interface is named.
Finding check_host_name(const GetVariable& get);
// MASTER_ADDR and MASTER_PORT, if they are set.
Finding check_rendezvous_address(const GetVariable& get);
// Logs and traces of several machines only line up if their clocks agree.
Finding check_clock();
// Needed by authors of backends and models only.
Finding check_compiler(const std::string& command);

}  // namespace yoke
