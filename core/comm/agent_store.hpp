// The store that torchrun's agent serves at MASTER_PORT, in which rank 0 leaves the address of its
// hub.
#pragma once

#include <string>

#include "core/comm/rendezvous.hpp"

namespace yoke {

// Rank 0 leaves `address`, and the other ranks read it. read_hub() waits for rank 0 until
// options.join_timeout. Both throw Error(UNAVAILABLE) if the store does not answer in time, and
// read_hub() also CANCELLED.
void publish_hub(const Rendezvous& rendezvous, const std::string& address);
std::string read_hub(const Rendezvous& rendezvous, const MemberOptions& options);

}  // namespace yoke
