// The events of a backend: spans of time for the trace and values for the metrics. This is the host
// side of the service "yoke.events/1".
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// One per rank. Any thread may call any function: a backend reports from its own threads while the
// thread that trains collects.
class BackendEvents {
 public:
  static constexpr size_t kMaxSpans = 100'000;  // between two calls of take_spans()
  static constexpr size_t kMaxMetrics = 64;     // different names in a run
  static constexpr size_t kMaxName = 63;        // bytes

  struct Span {
    std::string name;
    int64_t begin = 0;  // nanoseconds, as now() returns them
    int64_t end = 0;
    int64_t thread = 0;  // id that the operating system gives to the thread
  };

  // Returns the time in nanoseconds since 1970, which is the clock of LibTorch's profiler.
  static int64_t now();

  // Throw Error: INVALID_ARGUMENT for a malformed name or a span that ends before it begins,
  // RESOURCE_EXHAUSTED beyond the limits above. span() stores nothing unless recording.
  void span(std::string_view name, int64_t begin, int64_t end);
  void metric(std::string_view name, double value);

  // Starts or stops to store spans.
  void record(bool on);
  // Returns the spans since the last call, in the order of their arrival.
  std::vector<Span> take_spans();
  // Returns the values that have been set since the last call.
  std::map<std::string, double> take_metrics();
  // Returns how many spans and metrics have been dropped since the last call.
  int64_t take_dropped();

 private:
  std::mutex mutex_;  // guards all members
  bool recording_ = false;
  std::vector<Span> spans_;
  std::map<std::string, double, std::less<>> metrics_;  // set since the last take_metrics()
  std::set<std::string, std::less<>> names_;            // metrics of the run
  int64_t dropped_ = 0;
};

}  // namespace yoke
