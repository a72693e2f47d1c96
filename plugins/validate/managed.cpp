#include "plugins/validate/managed.hpp"

#include <utility>
#include <vector>

#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

constexpr size_t kKeptTensors = 1024;

}  // namespace

struct ManagedLedger::Tensor {
  YokeManagedTensor ours;
  YokeManagedTensor* real;
  std::shared_ptr<ManagedLedger> ledger;  // deleters may run on any thread and at any time
  std::string what;
  int needed = 0;
  bool deleted = false;
};

ManagedLedger::ManagedLedger(Monitor& monitor) : monitor_(monitor) {}
ManagedLedger::~ManagedLedger() = default;

YokeManagedTensor* ManagedLedger::track(YokeManagedTensor* real, std::string what) {
  auto tensor = std::make_unique<Tensor>();
  tensor->ours = *real;
  tensor->real = real;
  tensor->ledger = shared_from_this();
  tensor->what = std::move(what);
  tensor->ours.manager_ctx = tensor.get();
  tensor->ours.deleter = [](YokeManagedTensor* self) {
    auto* mine = static_cast<Tensor*>(self->manager_ctx);
    const std::shared_ptr<ManagedLedger> ledger = mine->ledger;
    if (ledger) ledger->release(mine);
  };
  YokeManagedTensor* result = &tensor->ours;
  const std::lock_guard lock(mutex_);
  live_.emplace(data<void>(real->tensor), std::move(tensor));
  return result;
}

bool ManagedLedger::need(const void* data, int change) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  if (found == live_.end()) return false;
  found->second->needed += change;
  return true;
}

void ManagedLedger::release(Tensor* tensor) {
  YokeManagedTensor* real = nullptr;
  bool needed = false;
  {
    const std::lock_guard lock(mutex_);
    if (!tensor->deleted) {
      tensor->deleted = true;
      real = tensor->real;
      needed = tensor->needed > 0;
      auto [it, end] = live_.equal_range(data<void>(real->tensor));
      while (it != end && it->second.get() != tensor) ++it;
      deleted_.push_back(std::move(it->second));
      live_.erase(it);
      if (deleted_.size() > kKeptTensors) deleted_.pop_front();
    }
  }
  if (real == nullptr) {
    monitor_.violated(Rule::kManagedIsDeletedOnce, "deleter", tensor->what + " is deleted again");
    return;
  }
  if (needed) {
    monitor_.violated(Rule::kCarryStaysUnchanged,
                      "deleter",
                      tensor->what + " is deleted, but the block that read it has kept a `saved`");
  }
  if (real->deleter != nullptr) real->deleter(real);
}

void ManagedLedger::check_released() {
  std::vector<std::unique_ptr<Tensor>> left;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, tensor] : live_) left.push_back(std::move(tensor));
    live_.clear();
    deleted_.clear();
  }
  for (const auto& tensor : left) {
    monitor_.violated(
        Rule::kManagedIsDeletedOnce, "destroy", tensor->what + " has never been deleted");
    if (tensor->real->deleter != nullptr) tensor->real->deleter(tensor->real);
  }
}

}  // namespace yoke::validate
