// The error message about a backend that cannot be used. Every step of loading throws this message,
// so that users always find the same four lines.
#pragma once

#include <string>

#include "yoke/error.hpp"

namespace yoke {

struct Rejection {
  std::string path;         // path of the library
  std::string phase;        // step of loading that failed: "the file", "loading" and so on
  std::string reason;       // one sentence
  std::string backend_abi;  // "1.0"; "unknown" if loading did not reach its table
  std::string fix;          // one line: what the user can do
};

// Throws Error(code) with the text
//
//   backend /x/y.so cannot be used
//     stage     ...
//     reason    ...
//     versions  backend ABI unknown, this Yoke ABI 1.0
//     fix       ...
[[noreturn]] void throw_rejected(int32_t code, const Rejection& rejection);

}  // namespace yoke
