// How the ranks of a world find each other, and what they bring to the start of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/control/hub.hpp"
#include "core/control/introduction.hpp"
#include "core/control/member.hpp"
#include "core/control/secret.hpp"

namespace yoke {

class VirtualWorld;
struct CommOptions;

// Where a rank finds the others; made once per rank. A world of several ranks needs exactly one of
// control_socket, master_addr and virtual_world. A world of one rank needs none.
struct Rendezvous {
  int32_t rank = 0;
  int32_t world_size = 1;
  std::string control_socket;  // Unix socket in a private folder of this machine; rank 0 serves it
  std::string master_addr;     // host at which all ranks meet; rank 0 serves it
  int32_t master_port = 0;
  // True if a store of torchrun's agent listens at master_addr and master_port. Rank 0 then listens
  // at a port of its own and leaves its address in that store.
  bool store_served = false;
  std::string attempt;           // number of torchrun's restart; "" = first
  std::string job;               // name that the launcher gives to the job; "" = unknown
  Secret secret;                 // that all ranks must know
  int32_t local_world_size = 1;  // number of ranks on this machine
  // Network interface for the data, by name; "" = the one through which this rank reaches rank 0.
  std::string interface;
  Introduction introduction;                    // facts that must be equal on all ranks
  std::shared_ptr<VirtualWorld> virtual_world;  // set if the ranks are threads of this process

  bool one_machine() const { return !control_socket.empty() || local_world_size == world_size; }
};

// The control connection of one rank, and on rank 0 the hub, too.
class Meeting {
 public:
  // Returns when all ranks are present and bring equal introductions. While it waits, rank 0
  // reports the missing ranks to options.progress every five seconds. Collective. Throws Error:
  // INVALID_ARGUMENT if the address cannot be used or the run is refused, with the reason;
  // UNAVAILABLE after options.join_timeout, naming the ranks that are missing; CANCELLED.
  Meeting(const Rendezvous& rendezvous, const CommOptions& options);

  Member& member() const { return *member_; }

 private:
  std::unique_ptr<Hub> hub_;  // rank 0 only; outlives the member
  std::unique_ptr<Member> member_;
};

// Tells the other ranks that this one cannot take part, and why. Rank 0 stays for up to five
// seconds, to tell it to those that arrive. Never throws.
void decline(const Rendezvous& rendezvous, const std::string& why) noexcept;

}  // namespace yoke
