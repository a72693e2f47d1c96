// Waits for a c10d::Work with a timeout and a cancel flag, and translates its failures into
// yoke::Error.
#pragma once

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/comm/communicator.hpp"
#include "yoke/error.hpp"

namespace yoke {

// The operation that a rank waits for, as named in messages.
struct PendingOperation {
  std::string operation;  // "all_gather of 64 x fp32 as collective 3 of dp_shard (unshard)"
  std::string axes;       // axes whose ranks take part: "dp_shard"
};

// Returns when the work is done and its result is valid. If it is done already, the call costs two
// locks. `describe` returns the PendingOperation and is called only if an error message needs it.
// `sliceable` is false for works whose wait cannot be repeated after a timeout (Gloo's send and
// recv); for these the cancel flag is not checked.
//
// Throws Error: CANCELLED if the cancel flag is set; UNAVAILABLE with the first cause if the
// control connection knows that a rank is lost; DEADLINE_EXCEEDED after options.timeout, while the
// operation may still be running, so the caller must abort the backend; for any other failure, the
// Error that translate() returns.
template <class Describe>
void wait_for(c10d::Work& work, const CommOptions& options, bool sliceable, Describe&& describe);

// Returns UNAVAILABLE for a lost connection, DEADLINE_EXCEEDED for a timeout of the transport, and
// `otherwise` for any other failure. If the failure is a yoke::Error already, its code is kept.
Error translate(const std::exception_ptr& failure,
                const PendingOperation& pending,
                const CommOptions& options,
                int32_t otherwise);

namespace detail {

enum class WaitEnd { kDone, kCancelled, kPeerLost, kTimedOut };
// Rethrows the exception of the work.
WaitEnd wait_in_slices(c10d::Work& work, const CommOptions& options, bool sliceable);
[[noreturn]] void throw_wait_end(WaitEnd end,
                                 const PendingOperation& pending,
                                 const CommOptions& options);

}  // namespace detail

template <class Describe>
void wait_for(c10d::Work& work, const CommOptions& options, bool sliceable, Describe&& describe) {
  detail::WaitEnd end;
  try {
    end = detail::wait_in_slices(work, options, sliceable);
  } catch (...) {
    throw translate(std::current_exception(), describe(), options, YOKE_INTERNAL);
  }
  if (end != detail::WaitEnd::kDone) detail::throw_wait_end(end, describe(), options);
}

}  // namespace yoke
