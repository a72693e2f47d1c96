// Waits at the end of a step until a device has done the work of the current stream.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <optional>
#include <utility>

namespace yoke::ptd {

// Returns a function that returns whether the work is done which the current stream of the device
// has now. On the CPU all work is done.
std::function<bool()> work_of_stream(c10::Device device);

// Used by one thread.
class StreamWait {
 public:
  // keep_waiting: called now and then; may throw to end the wait.
  explicit StreamWait(std::function<void()> keep_waiting)
      : keep_waiting_(std::move(keep_waiting)) {}

  // Returns when done() is true. limit: seconds that the wait may exceed the double of the longest
  // wait so far; unset = no limit. Throws what keep_waiting() throws, and Error(DEADLINE_EXCEEDED)
  // at the limit.
  void wait(const std::function<bool()>& done, std::optional<double> limit);

 private:
  const std::function<void()> keep_waiting_;
  double longest_ = 0, latest_ = 0;  // waits so far, in seconds
};

}  // namespace yoke::ptd
