// Counts the kernels that a step would launch on a device, on a machine without one.
#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/support/emulated_cuda.hpp"

namespace yoke::testing {

// Counts the launches of its thread: the operations of the emulated runtime, and ATen's operators
// as the kernels that they launch on CUDA. Only one may exist in a thread.
class LaunchCounter {
 public:
  LaunchCounter()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::FUNCTION}))) {
    OnCpu::launches = &counts_;
    current = this;
  }
  ~LaunchCounter() {
    at::removeCallback(handle_);
    OnCpu::launches = nullptr;
    current = nullptr;
  }
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;

  // The launches so far, by operator.
  const std::map<std::string, int>& counts() const { return counts_; }

 private:
  // Marks an operator that is counted. The operators that it calls are not counted.
  struct Counted final : at::ObserverContext {
    Counted() { ++depth; }
    ~Counted() override { --depth; }
  };
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    const int launches = launches_of(call.name());
    if (launches == 0) return nullptr;
    if (depth == 0) current->counts_[call.name()] += launches;
    return std::make_unique<Counted>();
  }
  static void leave(const at::RecordFunction&, at::ObserverContext*) {}

  // An operator that is in none of the tables counts as one launch.
  static int launches_of(const std::string& name) {
    static const std::map<std::string, int> several{
        // The sums of products of outputs and their gradients, the gradients, and the conversion of
        // that of the queries.
        {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", 3},
    };
    // These launch nothing, or only by operators that are counted.
    static const std::set<std::string> none{
        "aten::alias",      "aten::as_strided",    "aten::clone",
        "aten::contiguous", "aten::detach",        "aten::empty",
        "aten::empty_like", "aten::empty_strided", "aten::expand",
        "aten::flatten",    "aten::linear",        "aten::matmul",
        "aten::narrow",     "aten::reshape",       "aten::scaled_dot_product_attention",
        "aten::select",     "aten::slice",         "aten::t",
        "aten::to",         "aten::_to_copy",      "aten::transpose",
        "aten::unflatten",  "aten::unsqueeze",     "aten::_unsafe_view",
        "aten::view",       "aten::view_as",       "detach"};
    if (name.starts_with("autograd::engine::") || none.contains(name)) return 0;
    const auto found = several.find(name);
    return found == several.end() ? 1 : found->second;
  }

  static inline thread_local LaunchCounter* current = nullptr;
  static inline thread_local int depth = 0;  // counted operators that are running
  at::CallbackHandle handle_;
  std::map<std::string, int> counts_;
};

}  // namespace yoke::testing
