// Tensors that belong to the backend: which of them it has deleted.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "plugins/validate/monitor.hpp"

namespace yoke::validate {

// A tensor that the backend owns, around one of the host. Its deleter deletes that of the host.
class ManagedLedger : public std::enable_shared_from_this<ManagedLedger> {
 public:
  explicit ManagedLedger(Monitor& monitor);
  ~ManagedLedger();
  ManagedLedger(const ManagedLedger&) = delete;
  ManagedLedger& operator=(const ManagedLedger&) = delete;

  // Returns a tensor for the backend. what: its name in messages.
  YokeManagedTensor* track(YokeManagedTensor* real, std::string what);
  // Adds `change` to the number of `saved` that need the tensor at this address. Returns whether it
  // is a live tensor of this ledger.
  bool need(const void* data, int change);
  // Reports every tensor that is left. Call it when the context has been destroyed.
  void check_released();

 private:
  struct Tensor;
  void release(Tensor* tensor);

  Monitor& monitor_;
  std::mutex mutex_;
  // By the address of the memory, which empty tensors may share.
  std::multimap<const void*, std::unique_ptr<Tensor>> live_;
  // The last tensors that were deleted. They are kept, so that a second deletion is noticed.
  std::deque<std::unique_ptr<Tensor>> deleted_;
};

}  // namespace yoke::validate
