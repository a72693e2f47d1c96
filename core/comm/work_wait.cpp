// c10d::Work::wait(timeout) cannot be interrupted, so wait_for() waits in short slices and checks
// the cancel flag between them. The transports report timeouts and lost connections as exceptions
// that differ only in their text; translate() recognises the texts of Gloo, NCCL and c10d's stores.
#include "core/comm/work_wait.hpp"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "core/base/text.hpp"
#include "core/control/member.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Waits are split into slices of this length, so a cancel flag is noticed after this time at the
// latest.
constexpr milliseconds kSlice{50};

bool contains_any(std::string_view text, std::initializer_list<const char*> parts) {
  return std::any_of(
      parts.begin(), parts.end(), [&](const char* part) { return text.find(part) != text.npos; });
}

// Gloo puts the line of its source in front: "[/.../pair.cc:538] Read error ...".
std::string without_source_line(const std::string& text) {
  const size_t end = text.find("] ");
  return text.starts_with("[/") && end != std::string::npos ? text.substr(end + 2) : text;
}

std::string what_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return without_source_line(first_part(e.what()));
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

Error translate(const std::exception_ptr& failure,
                const PendingOperation& pending,
                const CommOptions& options,
                int32_t otherwise) {
  const std::string prefix = pending.operation + ": ";
  const auto lost = [&](const std::string& text) {
    return Error(YOKE_UNAVAILABLE, concat("a peer of ", pending.axes, " was lost: ", prefix, text));
  };
  const std::string text = what_of(failure);
  try {
    std::rethrow_exception(failure);
  } catch (const Error& e) {
    if (e.code() == YOKE_UNAVAILABLE) return lost(text);
    return Error(e.code(), prefix + text, e.rank(), e.step());
  } catch (...) {
  }
  if (contains_any(text, {"Timed out waiting", "Operation timed out"})) {
    return Error(YOKE_DEADLINE_EXCEEDED,
                 concat(prefix,
                        "not finished within ",
                        seconds_text(options.timeout),
                        ": a rank of ",
                        pending.axes,
                        " hangs or issues other collectives; comm.check=full names the difference, "
                        "comm.timeout gives more time (",
                        text,
                        ")"));
  }
  if (contains_any(text,
                   {"onnection closed",
                    "onnection reset",
                    "onnection refused",
                    "Broken pipe",
                    "pair closure",
                    "Socket closed",
                    "connection was likely closed"})) {
    return lost(text);
  }
  return Error(otherwise, prefix + text);
}

namespace detail {

WaitEnd wait_in_slices(c10d::Work& work, const CommOptions& options, bool sliceable) {
  if (work.isCompleted()) {
    work.wait();
    return WaitEnd::kDone;
  }
  if (!sliceable) {
    work.wait(options.timeout);
    return WaitEnd::kDone;
  }
  const auto deadline = Clock::now() + options.timeout;
  for (;;) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return WaitEnd::kCancelled;
    }
    if (options.member != nullptr && options.member->lost()) return WaitEnd::kPeerLost;
    auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return WaitEnd::kTimedOut;
    if (options.cancel != nullptr || options.member != nullptr) left = std::min(left, kSlice);
    try {
      work.wait(left);
      return WaitEnd::kDone;
    } catch (...) {
      // The end of a slice is reported as an exception too. If the work is still running, only the
      // slice has ended; if it is completed, it has failed.
      if (work.isCompleted() && !work.isSuccess()) throw;
    }
  }
}

void throw_wait_end(WaitEnd end, const PendingOperation& pending, const CommOptions& options) {
  if (end == WaitEnd::kCancelled) {
    throw Error(YOKE_CANCELLED, "cancelled while waiting for " + pending.operation);
  }
  if (end == WaitEnd::kPeerLost) {
    throw Error(YOKE_UNAVAILABLE,
                options.member->cause() + "; this rank was in " + pending.operation);
  }
  throw translate(std::make_exception_ptr(std::runtime_error("Operation timed out")),
                  pending,
                  options,
                  YOKE_DEADLINE_EXCEEDED);
}

}  // namespace detail
}  // namespace yoke
