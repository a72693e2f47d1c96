// Explains messages of CUDA and LibTorch about failures of a device to the user. Pure functions; no
// LibTorch.
#pragma once

#include <string>

namespace yoke {

// Returns whether a message says that memory could not be allocated, on a device or on the CPU.
bool lacks_memory(const std::string& message);

// Returns a message with what it means and what to do, for a user who does not know CUDA, and
// without LibTorch's general advice. Returns a message unchanged if it is none of those about a
// failure that all programs on the device can have. device: "cuda:0, NVIDIA H200".
std::string explain_device_failure(const std::string& message, const std::string& device);

}  // namespace yoke
