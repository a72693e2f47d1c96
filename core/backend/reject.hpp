// The one shape in which a backend is rejected.
#pragma once

#include <string>

#include "yoke/error.hpp"

namespace yoke {

struct Rejection {
  std::string path;
  std::string phase;  // how far loading came: "the file", "loading", ...
  std::string reason;
  std::string backend_abi;  // "1.0"; "unknown" before its table was seen
  std::string fix;          // one line
};

// backend /x/y.so cannot be used
//   stage     ...
//   reason    ...
//   versions  backend ABI unknown, this Yoke ABI 1.0
//   fix       ...
[[noreturn]] void throw_rejected(int32_t code, const Rejection& rejection);

}  // namespace yoke
