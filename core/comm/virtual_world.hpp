// What ranks that are threads of one process share.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/comm/thread_hub.hpp"

namespace yoke {

// Any thread.
class VirtualWorld {
 public:
  explicit VirtualWorld(int32_t world_size);

  int32_t size() const { return size_; }
  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  // The hub of that name; made by the first rank that asks. Throws Error(UNAVAILABLE) after
  // abort().
  std::shared_ptr<ThreadHub> hub(const std::string& name, const std::vector<int32_t>& ranks);
  // Wakes every rank that waits; only the first reason counts.
  void abort(const std::string& reason);
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
