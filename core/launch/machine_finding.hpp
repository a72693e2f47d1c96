// What a check of a machine, or of several, has found: the state, its cause, and what to do about
// it.
#pragma once

#include <string>

namespace yoke {

struct MachineFinding {
  enum Status { kOk, kWarning, kProblem };

  std::string what;  // subject, such as "shared memory"
  Status status = kOk;
  std::string found;  // what was found and, unless ok, why it is a problem
  std::string fix;    // a command, or what to change; "" = nothing to do
};

namespace finding {

inline MachineFinding ok(const std::string& what, const std::string& found) {
  return {what, MachineFinding::kOk, found, ""};
}
inline MachineFinding warning(const std::string& what,
                              const std::string& found,
                              const std::string& fix) {
  return {what, MachineFinding::kWarning, found, fix};
}
inline MachineFinding problem(const std::string& what,
                              const std::string& found,
                              const std::string& fix) {
  return {what, MachineFinding::kProblem, found, fix};
}

}  // namespace finding
}  // namespace yoke
