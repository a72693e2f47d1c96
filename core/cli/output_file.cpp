#include "core/cli/output_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/base/exit_code.hpp"
#include "core/cli/stop.hpp"
#include "yoke/text.hpp"

namespace yoke {

void require_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  const bool existed = ::access(path.c_str(), F_OK) == 0;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr)
    throw Stop{kExitUsage, concat(flag, " ", path, " cannot be written: ", std::strerror(errno))};
  std::fclose(file);
  if (!existed) ::unlink(path.c_str());
}

}  // namespace yoke
