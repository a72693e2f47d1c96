// Prints operators on DTensors, one line each, with the collectives that they caused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace yoke::mesh {

// Does nothing until a sink is set. Used by one thread at a time.
class OpTrace {
 public:
  using Sink = std::function<void(const std::string& line)>;

  void set_sink(Sink sink) { sink_ = std::move(sink); }
  bool enabled() const { return static_cast<bool>(sink_); }

  // Records a collective of the operator in progress; bytes: size of its payload.
  void collective(const char* what, const std::string& axis, int64_t bytes) {
    if (!enabled()) return;
    collectives_ +=
        std::string(" ") + what + " over " + axis + " (" + std::to_string(bytes) + " bytes);";
  }
  // Prints the line of an operator, followed by the collectives since the previous line.
  void print(std::string line) {
    if (!enabled()) return;
    if (!collectives_.empty()) line += "  |" + collectives_;
    collectives_.clear();
    sink_(line);
  }

 private:
  Sink sink_;
  std::string collectives_;
};

}  // namespace yoke::mesh
