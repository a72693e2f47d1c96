// What a user can do about a step that needs more memory than there is.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/cuda/rank_device.hpp"
#include "core/run/job.hpp"

namespace yoke {

// Returns the peak memory of the rank that needs the most, in bytes; -1 if the backend does not
// know it or refuses the plan.
using PeakOfPlan = std::function<int64_t(const YokePlan&)>;

// Returns the sentence that follows the message of an allocation that has failed: what a step needs
// by the backend's forecast, and the changes of the run after which it would fit. room: bytes that
// a rank can use.
std::string memory_advice(const YokePlan& plan,
                          const std::string& backend,
                          const PeakOfPlan& peak_of,
                          int64_t room);
// The same for a job. Starts no rank and does not communicate.
std::string memory_advice(const Job& job, int64_t room);

// Returns a warning if a step is forecast to need more bytes than the device has for this rank, or
// if other programs use much of its memory; "" if neither is true. needed: bytes of the parts of a
// forecast that are known. device: device_name().
std::string memory_warning(int64_t needed, const DeviceMemory& memory, const std::string& device);

}  // namespace yoke
