// Counts where a step would make the host wait for a device, on a machine without one.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <memory>
#include <string_view>

namespace yoke::testing {

// Counts the floating-point numbers that its thread reads from tensors, such as losses. Only one
// may exist in a thread. Integers are not counted: on the CPU, ids and targets are checked.
class HostReads {
 public:
  HostReads()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&HostReads::enter)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
    count_ = 0;
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& call) {
    if (std::string_view(call.name()) == "aten::_local_scalar_dense" &&
        call.inputs()[0].toTensor().is_floating_point())
      ++count_;
    return nullptr;
  }

  static inline thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

}  // namespace yoke::testing
