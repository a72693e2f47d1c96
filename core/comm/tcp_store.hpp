// c10d's TCPStore, opened so that what is wrong with the meeting place is told in a sentence and
// waiting for it can be watched and cancelled.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/comm/communicator.hpp"

namespace yoke {

// Rank 0 serves it, unless store_served; behind a loopback address it listens nowhere else. The
// others wait for the server. Throws Error: INVALID_ARGUMENT if the host cannot be resolved or the
// port is in use, UNAVAILABLE if nobody answers within options.timeout, CANCELLED.
c10::intrusive_ptr<c10d::Store> open_tcp_store(const Rendezvous& rendezvous,
                                               const CommOptions& options);

}  // namespace yoke
