// What a user can do about a step that needs more memory than there is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/config/options.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/run/job.hpp"

namespace yoke {

// A change of a run: another plan, or another value of one option of the backend.
struct RunChange {
  YokePlan plan;
  std::string keys;  // how the user asks for it; "" = no change
  std::optional<OptionList::Item> option = std::nullopt;  // the option that has another value
};

// Returns the peak memory of the rank that needs the most, in bytes; -1 if the backend does not
// know it or refuses the change.
using PeakOfChange = std::function<int64_t(const RunChange&)>;

// Returns the other values of each option that has few values and changes only how a step is
// carried out, in the declared order. Such an option is a bool, or a string with choices. options:
// the present values.
std::vector<std::vector<RunChange>> other_values(const YokeDescription& backend,
                                                 const OptionList& options,
                                                 const YokePlan& plan);

// Returns the text that follows the message of a failed allocation. It names what a step needs by
// the backend's forecast, and of each kind of change the first after which a step would fit.
// Without a forecast it only names options. options: as other_values() returns them. room: bytes
// that a rank can use.
std::string memory_advice(const YokePlan& plan,
                          const std::string& backend,
                          const std::vector<std::vector<RunChange>>& options,
                          const PeakOfChange& peak_of,
                          int64_t room);
// The same for a job. Starts no rank and does not communicate.
std::string memory_advice(const Job& job, int64_t room);

// Returns a warning if a step is forecast to need more bytes than the device has for this rank, or
// if something other than LibTorch's allocator, such as other programs, holds more than 4 GiB of
// its memory; "" if neither is true. needed: bytes of the parts of a forecast that are known.
// device: device_name().
std::string memory_warning(int64_t needed, const DeviceMemory& memory, const std::string& device);

}  // namespace yoke
