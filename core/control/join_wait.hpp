// The wait for the other ranks at the start of a run: attempts with pauses between them, until one
// succeeds, the time is over, or the run is cancelled.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "core/control/member.hpp"

namespace yoke {

// The time starts with the construction. One thread; `options` must outlive the object.
class JoinWait {
 public:
  explicit JoinWait(const MemberOptions& options);

  // Waits 200 ms before the next attempt. why: why the last one failed. Calls options.progress with
  // it every five seconds. Throws Error with `code` and the reason if options.join_timeout is over.
  // Throws CANCELLED.
  void pause(const std::string& why, int32_t code);
  // Throws Error(CANCELLED) if options.cancel is set.
  void check_cancel() const;

 private:
  using Clock = std::chrono::steady_clock;
  const MemberOptions& options_;
  const Clock::time_point deadline_;
  Clock::time_point report_;
};

// "MASTER_ADDR = 'node1' has no address (Name or service not known)"
std::string no_address_text(const std::string& host, const std::string& fault);

}  // namespace yoke
