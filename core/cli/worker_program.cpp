#include "core/cli/worker_program.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
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

namespace {

// A step allocates and frees its large tensors. The C library reads the variable when a program
// starts, and then asks the system for huge pages: a page fault for every 4 KiB makes the steps of
// a small model with a large vocabulary a tenth slower. Rejected: LibTorch's own
// THP_MEM_ALLOC_ENABLE, which aligns tensors to 2 MiB and needs up to twice the memory.
void prefer_huge_pages() {
  constexpr const char *kVariable = "GLIBC_TUNABLES", *kKey = "glibc.malloc.hugetlb";
  const char* const given = std::getenv(kVariable);
  const std::string before = given == nullptr ? "" : given;
  if (before.find(kKey) != before.npos) return;
  ::setenv(kVariable, (before + (before.empty() ? "" : ":") + kKey + "=1").c_str(), 1);
}

}  // namespace

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
  prefer_huge_pages();
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
