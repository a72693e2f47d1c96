// The keys of the hub as a c10d::Store, through which Gloo and NCCL connect the ranks.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/control/member.hpp"

namespace yoke {

// Returns a store whose calls are bounded by its timeout and by the loss of a rank; they then throw
// Error(DEADLINE_EXCEEDED) or Error(UNAVAILABLE). Thread-safe. The member must outlive it.
c10::intrusive_ptr<c10d::Store> make_control_store(Member& member,
                                                   std::chrono::milliseconds timeout);

}  // namespace yoke
