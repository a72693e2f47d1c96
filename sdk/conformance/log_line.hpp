// The rules of YokeHost.log about a line.
#pragma once

#include <cstdint>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::conformance {

// Returns what is wrong with a line of the log and its level, or "".
std::string log_line_fault(int32_t level, const YokeString& line);

}  // namespace yoke::conformance
