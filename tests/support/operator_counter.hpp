// Counts the operators of LibTorch.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <string>

namespace yoke::testing {

// Counts the calls of LibTorch's operators in its thread, by name, e.g. "aten::copy_", with those
// that other operators make. Only one may exist in a thread.
class OperatorCounter {
 public:
  OperatorCounter()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&OperatorCounter::enter)
                                               .scopes({at::RecordScope::FUNCTION}))) {
    calls_.clear();
  }
  ~OperatorCounter() { at::removeCallback(handle_); }
  OperatorCounter(const OperatorCounter&) = delete;
  OperatorCounter& operator=(const OperatorCounter&) = delete;

  int calls(const std::string& name) const {
    const auto found = calls_.find(name);
    return found == calls_.end() ? 0 : found->second;
  }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    ++calls_[call.name()];
    return nullptr;
  }

  static inline thread_local std::map<std::string, int> calls_;
  at::CallbackHandle handle_;
};

}  // namespace yoke::testing
