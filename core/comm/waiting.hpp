// Waiting for a c10d::Work while looking at the cancel flag and the clock, and what its failures
// mean.
#pragma once

#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "core/comm/communicator.hpp"
#include "yoke/error.hpp"

namespace yoke {

// What is waited for, as text for messages: "all_gather of 64 x fp32 as collective 3 of dp_shard".
struct Awaited {
  std::string operation;
  std::string axes;  // whose peers take part
};

// Returns when the work is done; its result is valid then. A work that is done already costs two
// locks. Throws Error(CANCELLED) if the cancel flag is set, DEADLINE_EXCEEDED after the timeout
// (the operation may then still be under way: abort the backend), else what translate() makes of
// the work's own error. sliceable: false for works whose wait cannot be repeated after a timeout
// (Gloo's send and recv).
template <class Describe>
void await(c10d::Work& work, const CommOptions& options, bool sliceable, Describe&& describe);

// Error(UNAVAILABLE) for a lost connection, DEADLINE_EXCEEDED for a timeout of the transport,
// `otherwise` for anything else; an Error keeps its code.
Error translate(const std::exception_ptr& failure,
                const Awaited& awaited,
                const CommOptions& options,
                int32_t otherwise);

// "60 s", "0.3 s".
std::string seconds_text(std::chrono::milliseconds time);

namespace detail {

enum class Waited { kDone, kCancelled, kTimedOut };
// Throws what the work threw.
Waited wait_in_slices(c10d::Work& work, const CommOptions& options, bool sliceable);
[[noreturn]] void throw_given_up(Waited why, const Awaited& awaited, const CommOptions& options);

}  // namespace detail

template <class Describe>
void await(c10d::Work& work, const CommOptions& options, bool sliceable, Describe&& describe) {
  detail::Waited outcome;
  try {
    outcome = detail::wait_in_slices(work, options, sliceable);
  } catch (...) {
    throw translate(std::current_exception(), describe(), options, YOKE_INTERNAL);
  }
  if (outcome != detail::Waited::kDone) detail::throw_given_up(outcome, describe(), options);
}

}  // namespace yoke
