#include "core/cli/worker_program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/exit_code.hpp"
#include "core/cli/libtorch.hpp"
#include "yoke/error.hpp"

namespace yoke {

std::string default_worker() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "yoke-worker")
      .string();
}

std::string find_worker(const std::string& configured) {
  const std::string path = configured.empty() ? default_worker() : configured;
  const std::string who = configured.empty() ? "" : "worker = \"" + path + "\": ";
  const std::string fix =
      configured.empty() ? "; it must be in the folder of yoke: build or install it there"
                         : "; give the absolute path of a worker program, or leave the key out";
  std::error_code error;
  if (path.front() != '/')
    throw Error(YOKE_FAILED_PRECONDITION, who + "not an absolute path" + fix);
  if (!std::filesystem::exists(path, error)) {
    throw Error(YOKE_FAILED_PRECONDITION, who + path + " does not exist" + fix);
  }
  if (!std::filesystem::is_regular_file(path, error) || ::access(path.c_str(), X_OK) != 0) {
    throw Error(YOKE_FAILED_PRECONDITION,
                who + path + " is not a program that you may execute" + fix);
  }
  provide_libtorch(path);
  return path;
}

int exec_worker(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  std::fprintf(stderr, "yoke: cannot start %s: %s\n", words[0], std::strerror(errno));
  return kExitFailed;
}

}  // namespace yoke
