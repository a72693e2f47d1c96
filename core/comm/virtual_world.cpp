#include "core/comm/virtual_world.hpp"

#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/comm/communicator.hpp"
#include "yoke/error.hpp"

namespace yoke {

// Spinning with more ranks than cores is several times slower than sleeping.
VirtualWorld::VirtualWorld(int32_t world_size)
    : size_(world_size),
      spin_(static_cast<uint32_t>(world_size) <= std::thread::hardware_concurrency()),
      store_(c10::make_intrusive<c10d::HashStore>()) {
  if (world_size < 1) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "a world of " + std::to_string(world_size) + " ranks; allowed: at least 1");
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

void abort_virtual_world(VirtualWorld& world, const std::string& reason) {
  world.abort(reason);
}

}  // namespace yoke
