// A result replaces a regular file in one step, so that a reader never sees a part of it. Anything
// else, such as /dev/null or a named pipe, must not be replaced: the text is written to it. This
// includes /dev/stdout, even if the shell has redirected the output to a regular file.
#include "core/cli/output_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/base/exit_code.hpp"
#include "core/base/files.hpp"
#include "core/cli/stop.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

// Returns whether a path exists and refers to something that must not be replaced.
bool is_stream(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return false;
  const bool names_open_file =
      path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/");
  return names_open_file || (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode));
}

// Returns the path of the file itself, if `path` is a symbolic link to one.
std::string file_of(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::canonical(path, error);
  return error ? path : file.string();
}

[[noreturn]] void refuse(const char* flag, const std::string& path, const std::string& why) {
  throw Stop{kExitUsage, concat(flag, " ", path, " cannot be written: ", why)};
}

}  // namespace

void require_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  if (is_stream(path)) {
    // Not opened, because the reader of a pipe would see its end when it is closed again.
    if (::access(path.c_str(), W_OK) != 0) refuse(flag, path, std::strerror(errno));
    return;
  }
  const bool existed = ::access(path.c_str(), F_OK) == 0;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) refuse(flag, path, std::strerror(errno));
  std::fclose(file);
  if (!existed) {
    ::unlink(path.c_str());
    return;
  }
  const fs::path folder = fs::path(file_of(path)).parent_path();
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    refuse(flag, path, concat("no file can be created in ", folder.string()));
}

void write_output(const std::string& path, std::string_view text) {
  if (path.empty()) return;
  if (!is_stream(path)) return replace_text(file_of(path), text);
  std::fflush(stdout);  // the path may be another name of it
  std::FILE* file = std::fopen(path.c_str(), "a");
  const bool written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  const bool closed = file == nullptr || std::fclose(file) == 0;
  if (!written || !closed)
    throw Error(YOKE_INTERNAL,
                path + " cannot be written: " + std::strerror(written ? errno : error));
}

}  // namespace yoke
