// c10d's TCPStore, opened so that a wrong address is explained in one sentence, and so that the
// wait for the server reports its progress and can be cancelled.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/comm/communicator.hpp"
#include "core/comm/rendezvous.hpp"

namespace yoke {

// Connects to the store of rendezvous.master_addr and master_port. Rank 0 serves it unless
// store_served is set. If master_addr is a loopback address, rank 0 listens on that address only.
// The other ranks wait for the server. Throws Error: INVALID_ARGUMENT if the host cannot be
// resolved or the port is in use, UNAVAILABLE if no server answers within options.timeout,
// CANCELLED.
c10::intrusive_ptr<c10d::Store> open_tcp_store(const Rendezvous& rendezvous,
                                               const CommOptions& options);

}  // namespace yoke
