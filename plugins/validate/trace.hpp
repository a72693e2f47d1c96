// The trace of the calls across the contract: one JSON object for each call, one file for each
// rank.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "yoke/parallel_backend.h"

namespace yoke::validate {

// One line of the trace under construction: the fields that belong to one kind of call only.
class Fields {
 public:
  Fields& add(std::string_view key, std::string_view text);
  Fields& add(std::string_view key, int64_t number);
  Fields& add(std::string_view key, double number);  // null if it is not finite
  // Adds dtype, count and bytes of a tensor, which may be NULL.
  Fields& add(const YokeTensor* tensor);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Any thread. Without a file nothing is written.
class Trace {
 public:
  // Creates the file FILE_RRR of rank RRR. file: "" = no trace. Throws Error(INVALID_ARGUMENT).
  Trace(const std::string& file, int32_t rank);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  bool on() const { return file_ != nullptr; }

  // A call that has returned. by: the side that made it.
  struct Call {
    const char* by;
    std::string_view name;
    std::string_view function;  // function of the backend that was running, may be the call itself
    int64_t step;
    int32_t code;
    std::chrono::nanoseconds time;
  };
  void write(const Call& call, const Fields& fields);

 private:
  std::FILE* file_ = nullptr;
  std::string name_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Returns the file of a rank: "/tmp/abi_001.jsonl" for "/tmp/abi.jsonl" and rank 1.
std::string trace_file_of(const std::string& file, int32_t rank);

}  // namespace yoke::validate
