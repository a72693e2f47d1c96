// The name of a signal for messages.
#pragma once

#include <cstring>
#include <string>

#include "yoke/text.hpp"

namespace yoke {

// Returns "signal 11 (SIGSEGV)", or "signal 40" for a signal without a name.
inline std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return concat("signal ", signal);
  return concat("signal ", signal, " (SIG", name, ")");
}

}  // namespace yoke
