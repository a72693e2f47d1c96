// The state that ranks share when they are threads of one process.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/comm/thread_hub.hpp"

namespace yoke {

// One per run, shared by its ranks. All functions may be called from any thread.
class VirtualWorld {
 public:
  // Throws Error(INVALID_ARGUMENT) for a size below 1.
  explicit VirtualWorld(int32_t world_size);

  int32_t size() const { return size_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // Returns the hub of that name, which the first caller creates. `ranks` are the global ranks of
  // its members, ascending. Throws Error(UNAVAILABLE) after abort().
  std::shared_ptr<ThreadHub> hub(const std::string& name, const std::vector<int32_t>& ranks);
  // Wakes every waiting rank with Error(UNAVAILABLE) and this reason. Only the first call counts.
  void abort(const std::string& reason);
  // Throws Error(UNAVAILABLE) after abort().
  void require_alive() const;

 private:
  const int32_t size_;
  const bool spin_;
  c10::intrusive_ptr<c10d::Store> store_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<ThreadHub>> hubs_;
  std::string aborted_;  // reason; "" = alive
};

}  // namespace yoke
