#include "sdk/conformance/progress.hpp"

namespace yoke::conformance {
namespace {

std::function<void(const std::string&)>& sink() {
  static std::function<void(const std::string&)> the_sink;
  return the_sink;
}

}  // namespace

void set_progress(std::function<void(const std::string& where)> the_sink) {
  sink() = std::move(the_sink);
}

void report_progress(const std::string& where) {
  if (sink()) sink()(where);
}

}  // namespace yoke::conformance
