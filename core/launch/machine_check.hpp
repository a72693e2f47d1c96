// Checks whether this machine is fit for a run. Each function checks one subject and returns one
// finding: the state, the cause of a problem, and what to do about it. The checks leave the machine
// unchanged. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/launch/environment.hpp"
#include "core/launch/machine_finding.hpp"

namespace yoke {

// Checks the number of processors that this process may use, and OMP_NUM_THREADS.
MachineFinding check_cores(const GetVariable& get);
MachineFinding check_memory();
// Checks the folder in memory that NCCL uses. Containers often limit it to 64 MiB.
MachineFinding check_shared_memory(const std::string& folder = "/dev/shm");
// Checks how ranks on the CPUs of this machine will exchange tensors: through shared memory, which
// it tries, or over Gloo.
MachineFinding check_transport();
// Checks the free disk space for run folders.
MachineFinding check_disk(const std::string& folder);
// Checks the limit of open files: every communicator needs a connection per peer.
MachineFinding check_open_files();
// Checks the folder in which the ranks of one machine find each other.
MachineFinding check_rendezvous_folder();
// Checks that this machine can connect to itself, as the ranks of a run do.
MachineFinding check_loopback();
// Checks the network interface that GLOO_SOCKET_IFNAME names, and says what the machine is called.
MachineFinding check_host_name(const GetVariable& get);
// Checks MASTER_ADDR and MASTER_PORT, if they are set.
MachineFinding check_rendezvous_address(const GetVariable& get);
// Checks clock synchronisation, without which logs and traces of several machines cannot be
// compared.
MachineFinding check_clock();
// Checks for a C++ compiler, which only authors of backends and models need.
MachineFinding check_compiler(const std::string& command);

}  // namespace yoke
