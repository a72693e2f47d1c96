// Ranks that are threads need no sockets: a store in memory replaces the TCPStore, and a ThreadHub
// per communicator replaces the connections. When a process is lost, its closed sockets make its
// peers fail. Here abort() does this: it fails every hub, so that no rank waits for a rank that has
// ended.
#include "core/comm/virtual_world.hpp"

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/comm/world.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {

// Ranks busy-wait only if there is a core for each of them. With more ranks than cores spinning is
// several times slower than sleeping, because the rank that all others wait for gets no core.
VirtualWorld::VirtualWorld(int32_t world_size)
    : size_(world_size),
      spin_(static_cast<uint32_t>(world_size) <= std::thread::hardware_concurrency()),
      store_(c10::make_intrusive<c10d::HashStore>()) {
  if (world_size < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("a world of ", world_size, " ranks; allowed: at least 1"));
  }
}

std::shared_ptr<ThreadHub> VirtualWorld::hub(const std::string& name,
                                             const std::vector<int32_t>& ranks) {
  std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw Error(YOKE_UNAVAILABLE, aborted_);
  auto& hub = hubs_[name];
  if (!hub) hub = std::make_shared<ThreadHub>(ranks, spin_);
  return hub;
}

// Only the first reason is kept. This call makes the other ranks fail too, and the reasons that
// they then report would hide the first one.
void VirtualWorld::abort(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_.empty()) return;
  aborted_ = reason;
  for (auto& [name, hub] : hubs_) hub->kill(reason);
}

void VirtualWorld::require_alive() const {
  std::lock_guard lock(mutex_);
  if (!aborted_.empty()) throw Error(YOKE_UNAVAILABLE, aborted_);
}

std::shared_ptr<VirtualWorld> make_virtual_world(int32_t world_size) {
  return std::make_shared<VirtualWorld>(world_size);
}

}  // namespace yoke
