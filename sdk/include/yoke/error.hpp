// yoke::Error, the one exception type, and how it crosses the C border.
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

// A failure with a canonical code. The message says what failed, the value given, what is allowed
// and how to fix it. Thrown inside a library, never across the C border.
class Error : public std::runtime_error {
 public:
  Error(int32_t code, const std::string& message, int32_t rank = -1, int64_t step = -1)
      : std::runtime_error(message), code_(code), rank_(rank), step_(step) {}

  int32_t code() const { return code_; }
  int32_t rank() const { return rank_; }  // the rank that failed, -1 = unknown
  int64_t step() const { return step_; }  // -1 = not in a step

 private:
  int32_t code_;
  int32_t rank_;
  int64_t step_;
};

inline YokeString view(std::string_view s) {
  return {s.data(), s.size()};
}
inline std::string_view view(const YokeString& s) {
  return {s.data ? s.data : "", s.size};
}

inline YokeError make_error() {
  YokeError e{};
  e.header = YOKE_HEADER(YokeError, YOKE_ID_ERROR);
  e.rank = -1;
  e.step = -1;
  return e;
}

// Writes code and text into *err, which may be NULL, cut to what fits. Returns the code.
inline int32_t fill(
    YokeError* err, int32_t code, std::string_view text, int32_t rank = -1, int64_t step = -1) {
  if (err == nullptr || err->header.struct_id != YOKE_ID_ERROR) return code;
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

// LibTorch appends a C++ backtrace to what(); users need the first part.
inline std::string first_part(const char* what) {
  std::string s(what);
  if (auto at = s.find("\nException raised from"); at != std::string::npos) s.resize(at);
  return s;
}

// The exception barrier: runs f, returns YOKE_OK or the code of what it threw.
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
    try {
      return fill(err, YOKE_INTERNAL, first_part(e.what()));
    } catch (...) {
      return fill(err, YOKE_INTERNAL, "out of memory while reporting an error");
    }
  } catch (...) {
    return fill(err, YOKE_UNKNOWN, "an exception that is not a std::exception");
  }
}

// The way back: throws what a call across the border reported.
inline void check(int32_t code, const YokeError& err) {
  if (code != YOKE_OK) throw Error(code, err.text, err.rank, err.step);
}

// f(&err): a call across the border.
template <class F>
void call(F&& f) {
  YokeError err = make_error();
  check(std::forward<F>(f)(&err), err);
}

}  // namespace yoke
