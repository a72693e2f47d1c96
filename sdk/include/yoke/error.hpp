// yoke::Error, the one exception type of the C++ layer, and its conversion at the C ABI boundary:
// guard() turns exceptions into codes, call() turns codes back into exceptions. Does not need
// LibTorch.
//
// This is a function of the contract that is written in C++, and a call of one:
//
//   int32_t checkpoint(YokeWrapped* model, const YokeCheckpointArgs* args, YokeError* err) {
//     return yoke::guard(err, [&] { ... throw yoke::Error(YOKE_INTERNAL, "no gradient of w"); });
//   }
//   yoke::call([&](YokeError* err) { return service->barrier(comm, err); });  // throws yoke::Error
//
// All functions may be called from any thread. None is collective.
#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "yoke/parallel_backend.h"

namespace yoke {

// A failure with one of the codes of the contract (YOKE_INVALID_ARGUMENT ...). The message names
// what failed, the value that was given, what is allowed and how to fix it. Errors are thrown
// inside a library and never cross the ABI boundary. yoke/parallel_backend.h explains when to use
// which code.
class Error : public std::runtime_error {
 public:
  // rank: the rank that failed, -1 = unknown. step: the step that failed, -1 = not in a step.
  Error(int32_t code, const std::string& message, int32_t rank = -1, int64_t step = -1)
      : std::runtime_error(message), code_(code), rank_(rank), step_(step) {}

  // Return the constructor's arguments; what() is the message.
  int32_t code() const { return code_; }
  int32_t rank() const { return rank_; }
  int64_t step() const { return step_; }

 private:
  int32_t code_;
  int32_t rank_;
  int64_t step_;
};

// ---- Strings ----

// Convert between the contract's strings and std::string_view, without a copy. A YokeString that
// is passed through the contract must end with a 0: use literals and std::strings, not substrings.
inline YokeString view(std::string_view s) {
  return {s.data(), s.size()};
}
// {NULL, 0} becomes an empty text. The result lives as long as the text of the YokeString.
inline std::string_view view(const YokeString& s) {
  return {s.data ? s.data : "", s.size};
}

// ---- From codes to exceptions and back ----

// Returns an error to pass to a function of the contract. Its header is set, its code is 0, its
// rank and step are unknown.
inline YokeError make_error() {
  YokeError e{};
  e.header = YOKE_HEADER(YokeError, YOKE_ID_ERROR);
  e.rank = -1;
  e.step = -1;
  return e;
}

// Writes an error into *err and returns its code, which a failing function of the contract then
// returns. The text is truncated to the space in *err. If err is NULL or not a YokeError, only the
// code is returned.
inline int32_t fill(
    YokeError* err, int32_t code, std::string_view text, int32_t rank = -1, int64_t step = -1) {
  if (err == nullptr || err->header.struct_id != YOKE_ID_ERROR) return code;
  // text is the last field, and its size depends on the caller's struct_size. At least the
  // terminating 0 must fit.
  const size_t room = err->header.struct_size > offsetof(YokeError, text)
                          ? err->header.struct_size - offsetof(YokeError, text)
                          : 0;
  if (room == 0) return code;
  err->code = code;
  err->rank = rank;
  err->step = step;
  const size_t n = text.size() < room - 1 ? text.size() : room - 1;
  std::memcpy(err->text, text.data(), n);
  err->text[n] = '\0';
  return code;
}

// Returns a message without the C++ backtrace that LibTorch appends to what(), which users do not
// need. A text without such a backtrace is returned unchanged.
inline std::string first_part(const char* what) {
  std::string s(what);
  if (auto at = s.find("\nException raised from"); at != std::string::npos) s.resize(at);
  return s;
}

// Runs f() and lets no exception escape. Every function of the C ABI wraps its body in it. Returns
// YOKE_OK, or fills *err (which may be NULL) and returns a code: that of an Error,
// YOKE_RESOURCE_EXHAUSTED for std::bad_alloc, YOKE_INTERNAL for any other std::exception,
// YOKE_UNKNOWN for anything else.
template <class F>
int32_t guard(YokeError* err, F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return YOKE_OK;
  } catch (const Error& e) {
    return fill(err, e.code(), e.what(), e.rank(), e.step());
  } catch (const std::bad_alloc&) {
    return fill(err, YOKE_RESOURCE_EXHAUSTED, "out of memory");
  } catch (const std::exception& e) {
    // first_part allocates, and may itself fail.
    try {
      return fill(err, YOKE_INTERNAL, first_part(e.what()));
    } catch (...) {
      return fill(err, YOKE_INTERNAL, "out of memory while reporting an error");
    }
  } catch (...) {
    return fill(err, YOKE_UNKNOWN, "an exception that is not a std::exception");
  }
}

// Throws the Error that a call across the ABI boundary has reported, with the text, the rank and
// the step of err. Does nothing if code is YOKE_OK.
inline void check(int32_t code, const YokeError& err) {
  if (code != YOKE_OK) throw Error(code, err.text, err.rank, err.step);
}

// Calls f(err), a function of the contract that takes a YokeError* and returns a code. Throws Error
// if it fails:
//
//   call([&](YokeError* err) { return service->barrier(comm, err); });
template <class F>
void call(F&& f) {
  // The struct takes 4 KiB of the stack for each call.
  YokeError err = make_error();
  check(std::forward<F>(f)(&err), err);
}

}  // namespace yoke
