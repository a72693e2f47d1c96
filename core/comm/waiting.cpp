#include "core/comm/waiting.hpp"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string_view>

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long a set cancel flag may go unnoticed.
constexpr milliseconds kSlice{50};

bool contains_any(std::string_view text, std::initializer_list<const char*> parts) {
  return std::any_of(
      parts.begin(), parts.end(), [&](const char* part) { return text.find(part) != text.npos; });
}

std::string what_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return first_part(e.what());
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace

std::string seconds_text(milliseconds t) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(t.count()) / 1000);
  return text;
}

Error translate(const std::exception_ptr& failure,
                const Awaited& awaited,
                const CommOptions& options,
                int32_t otherwise) {
  const std::string prefix = awaited.operation + ": ";
  const auto lost = [&](const std::string& text) {
    return Error(YOKE_UNAVAILABLE, "a peer of " + awaited.axes + " was lost: " + prefix + text);
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
    return Error(
        YOKE_DEADLINE_EXCEEDED,
        prefix + "not finished within " + seconds_text(options.timeout) + ": a rank of " +
            awaited.axes +
            " hangs, or issues other collectives; comm.check=full names them, comm.timeout gives "
            "more time (" +
            text + ")");
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

Waited wait_in_slices(c10d::Work& work, const CommOptions& options, bool sliceable) {
  if (work.isCompleted()) {
    work.wait();
    return Waited::kDone;
  }
  if (!sliceable) {
    work.wait(options.timeout);
    return Waited::kDone;
  }
  const auto deadline = Clock::now() + options.timeout;
  for (;;) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed)) {
      return Waited::kCancelled;
    }
    auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return Waited::kTimedOut;
    if (options.cancel != nullptr) left = std::min(left, kSlice);
    try {
      work.wait(left);
      return Waited::kDone;
    } catch (...) {
      // The end of a slice is an exception too; the work knows which it was.
      if (work.isCompleted() && !work.isSuccess()) throw;
    }
  }
}

void throw_given_up(Waited why, const Awaited& awaited, const CommOptions& options) {
  if (why == Waited::kCancelled) {
    throw Error(YOKE_CANCELLED, "cancelled while waiting for " + awaited.operation);
  }
  throw translate(std::make_exception_ptr(std::runtime_error("Operation timed out")),
                  awaited,
                  options,
                  YOKE_DEADLINE_EXCEEDED);
}

}  // namespace detail
}  // namespace yoke
