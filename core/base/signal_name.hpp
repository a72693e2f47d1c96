// "signal 11 (SIGSEGV)"
#pragma once

#include <cstring>
#include <string>

namespace yoke {

inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  std::string text = "signal " + std::to_string(signal);
  return name == nullptr ? text : text + " (SIG" + name + ")";
}

}  // namespace yoke
