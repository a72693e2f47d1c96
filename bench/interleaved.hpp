// Measures the times of several cases, interleaved, so that a busy machine slows all of them
// equally. Prints medians with ranges. Only programs of bench/ include this header.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace yoke::bench {

// Hides the value from the compiler, which can then neither drop nor fold the code that uses it.
template <class T>
void hide(T& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The seconds of each round of one case.
struct Samples {
  std::string name;
  std::vector<double> seconds;
};

struct Spread {
  double median = 0, min = 0, max = 0;
};

inline Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

// difference() returns the spread of a - b over the rounds, ratio() that of a / b. The two values
// of a round were measured one right after the other.
inline Spread difference(const Samples& a, const Samples& b) {
  std::vector<double> values;
  for (size_t i = 0; i < a.seconds.size(); ++i) values.push_back(a.seconds[i] - b.seconds[i]);
  return spread(values);
}
inline Spread ratio(const Samples& a, const Samples& b) {
  std::vector<double> values;
  for (size_t i = 0; i < a.seconds.size(); ++i) values.push_back(a.seconds[i] / b.seconds[i]);
  return spread(values);
}

// Prints "name   12.30 (11.90 .. 14.00) ns" for scale 1e9 and unit "ns".
inline void print(const std::string& name, const Spread& s, double scale, const char* unit) {
  std::printf("%-44s %10.2f (%.2f .. %.2f) %s\n",
              name.c_str(),
              s.median * scale,
              s.min * scale,
              s.max * scale,
              unit);
}

// Returns the seconds of one call of f: the mean of `calls` calls.
template <class F>
double time_calls(int64_t calls, F&& f) {
  const double begin = seconds_now();
  for (int64_t i = 0; i < calls; ++i) f();
  return (seconds_now() - begin) / static_cast<double>(calls);
}

}  // namespace yoke::bench
