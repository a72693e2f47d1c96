// Gloo: ranks are processes, tensors are on the CPU. The only door to ProcessGroupGloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace yoke {

struct GlooDevice;  // a network address and the thread that serves its sockets

// Loopback: ranks of one machine, nothing is reachable from outside. Throws Error(UNAVAILABLE).
std::shared_ptr<GlooDevice> loopback_gloo_device();
// A network interface by name; "" = the address that this machine's host name resolves to.
std::shared_ptr<GlooDevice> network_gloo_device(const std::string& interface);

// Who a new group consists of.
struct GlooGroup {
  std::string name;  // for messages
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{60000};  // of every operation
};

// Connects the members of a group; collective over them. Differences from c10d's own Gloo backend:
// _reduce_scatter_base sends each rank only its part and adds in rank order (c10d's is an
// all_reduce of everything, and its Work cannot be waited for in slices); small all_reduces and
// all_gathers take one round; abort() closes the connections, so that operations under way fail on
// the other members. Throws Error(UNAVAILABLE).
c10::intrusive_ptr<c10d::Backend> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::shared_ptr<GlooDevice>& device,
                                               const GlooGroup& group);

}  // namespace yoke
