// Explains to the user what messages of CUDA and LibTorch mean that report a failure of memory or
// of a device. Its functions are pure and use no LibTorch.
#pragma once

#include <optional>
#include <string>

namespace yoke {

// An allocation that has failed.
struct MemoryFailure {
  bool on_device = false;  // whether it was memory of a device; else of the machine
  std::string text;        // message up to the end of the line that reports this
};
// Returns what a message says about an allocation that has failed; nothing if it is about something
// else.
std::optional<MemoryFailure> memory_failure(const std::string& message);

// Returns a message about a failed device, with what it means and what to do, but without
// LibTorch's general advice. A message that is not known here is returned unchanged. device:
// device_name(); "" if only the backend knows which device it uses. how_to_continue: appended to
// failures that may happen in the middle of a run.
std::string explain_device_failure(const std::string& message,
                                   const std::string& device,
                                   const std::string& how_to_continue = "");

}  // namespace yoke
