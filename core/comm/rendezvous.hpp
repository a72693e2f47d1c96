// How the ranks of a world find each other, and the wait until all of them have arrived.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace yoke {

class Mailbox;
class VirtualWorld;
struct CommOptions;

// Where a rank finds the others; made once per rank. A world of several ranks needs exactly one of
// file_store, master_addr and virtual_world. A world of one rank needs none.
struct Rendezvous {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string file_store;   // path of a file that ranks of one machine share; opens no port
  std::string master_addr;  // host whose TCPStore all ranks connect to; rank 0 serves it
  int32_t master_port = 0;
  bool store_served = false;     // true = another process serves it, e.g. torchrun's agent
  std::string attempt;           // restart number, if the store survives restarts; "" = first
  int32_t local_world_size = 1;  // number of ranks on this machine
  // Network interface by name; "" = loopback if all ranks are on this machine, otherwise the
  // interface to which the host name resolves.
  std::string interface;
  std::shared_ptr<VirtualWorld> virtual_world;  // set if the ranks are threads of this process
};

// Returns when every rank of the world has registered with the store. While it waits, rank 0
// reports the missing ranks to options.progress every five seconds. Collective. Throws Error:
// UNAVAILABLE after options.timeout, naming the ranks that are missing and those that are present;
// INVALID_ARGUMENT if another process has registered with this rank's number; CANCELLED.
void wait_for_all_ranks(Mailbox& mailbox,
                        int32_t rank,
                        int32_t world_size,
                        const CommOptions& options);

}  // namespace yoke
