// Signals of this process: their names for messages, and whether one is ignored.
#pragma once

#include <csignal>
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

// Returns whether this process ignores a signal, as `nohup` makes it ignore SIGHUP.
inline bool ignores(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace yoke
