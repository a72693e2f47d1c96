// What a rank knows about itself and its machine, for comparing all machines of a run. No LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/launch/environment.hpp"

namespace yoke {

struct MachineFacts {
  int32_t rank = 0;
  std::string host;
  std::string boot;              // differs between machines that have the same name
  std::string own_name_address;  // that the host name resolves to; "" = none

  std::string version;                          // version of Yoke
  std::map<std::string, std::string> programs;  // name -> sample of its contents
  std::string program_fault;                    // why the worker cannot be started; "" = it can

  std::string address, interface;  // through which other ranks reach this one
  std::string interface_fault;     // what is wrong with GLOO_SOCKET_IFNAME; "" = nothing
  double lookup_seconds = 0;       // time to look up MASTER_ADDR

  std::string secret;  // proof that this rank knows a secret, in hexadecimal; "" = it has none
  std::string secret_fault;   // why its file cannot be used; "" = it can
  std::string run_dir_fault;  // what is wrong with the run folder; "" = nothing

  int64_t open_files = 0;      // hard limit
  std::vector<int> cores;      // numbers of the processors that this rank may use
  int threads = 1;             // that this rank would compute with
  bool threads_given = false;  // whether OMP_NUM_THREADS gives the number
};

// Adds what this process finds out alone: host, boot, own_name_address, open_files, cores and
// threads. Takes at most three seconds, which a silent name server costs.
void add_own_facts(MachineFacts& facts, int32_t local_world_size, const GetVariable& get);

// Convert facts to a text for a message, and back. unpack_facts() throws Error(DATA_LOSS) for a
// text that another version of Yoke has made.
std::string pack_facts(const MachineFacts& facts);
MachineFacts unpack_facts(const std::string& text);

}  // namespace yoke
