// Gloo, for ranks that are processes and tensors in CPU memory. The only place that uses
// ProcessGroupGloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace yoke {

struct GlooDevice;  // a network address and the thread that serves its sockets

// Open a device at an address of this machine, given as a number, or at a network interface, given
// by name. Throw Error(UNAVAILABLE).
std::shared_ptr<GlooDevice> address_gloo_device(const std::string& address);
std::shared_ptr<GlooDevice> interface_gloo_device(const std::string& interface);

// One member's description of a new group.
struct GlooGroup {
  std::string name;  // used in messages
  int rank = 0;      // index of this rank among the members
  int size = 1;
  std::chrono::milliseconds timeout{60000};  // limit of every operation
};

// Connects the members of a group. Collective over them. Throws Error(UNAVAILABLE). The result
// differs from c10d's own Gloo backend in three points:
//
//   _reduce_scatter_base  sends each rank only its part and adds in rank order. c10d's version is
//                         an all_reduce of the full input, whose Work cannot be waited for again
//                         after a timeout.
//   small operations      all_reduce and all_gather of few bytes take one round.
//   abort()               closes the connections, so that operations in flight fail on the other
//                         members too.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::shared_ptr<GlooDevice>& device,
                                               const GlooGroup& group);

}  // namespace yoke
