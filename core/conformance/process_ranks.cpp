// Each rank writes its result, or the text of its exception, to a file. The parent waits for the
// processes in the order in which they end, so the first failure is the cause of the others.
#include "core/conformance/process_ranks.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "sdk/conformance/check.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

// A private folder that is removed with its contents.
class Folder {
 public:
  Folder() : path_((fs::temp_directory_path() / "yoke-ranks-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw Error(YOKE_RESOURCE_EXHAUSTED, concat("no temporary folder: ", std::strerror(errno)));
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string of(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

[[noreturn]] void run_rank(const Folder& folder, int32_t rank, const ProcessRank& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  std::string text;
  try {
    text = body(rank, folder.of("socket"));
  } catch (const std::exception& e) {
    text = e.what();
    code = 1;
  }
  std::ofstream(folder.of(std::to_string(rank)), std::ios::binary) << text;
  ::_exit(code);
}

int32_t rank_of(const std::vector<pid_t>& ranks, pid_t pid) {
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank] == pid) return static_cast<int32_t>(rank);
  return -1;
}

// Waits for all ranks. Returns the failure of the first one that failed, or "".
std::string wait_for(const std::vector<pid_t>& ranks, const Folder& folder) {
  std::string failure;
  for (size_t left = ranks.size(); left > 0;) {
    int status = 0;
    const pid_t pid = ::wait(&status);
    const int32_t rank = rank_of(ranks, pid);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return "a rank is gone";
    if (rank < 0) continue;
    --left;
    if (!failure.empty() || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) continue;
    failure = WIFSIGNALED(status)
                  ? concat("rank ", rank, " died of ", ::strsignal(WTERMSIG(status)))
                  : contents(folder.of(std::to_string(rank)));
    if (failure.empty()) failure = concat("rank ", rank, " ended with ", WEXITSTATUS(status));
    for (const pid_t other : ranks) ::kill(other, SIGKILL);
  }
  return failure;
}

}  // namespace

std::vector<std::string> run_process_ranks(int32_t ranks, const ProcessRank& body) {
  const auto threads =
      std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  if (threads != 1)
    throw Error(
        YOKE_INTERNAL,
        concat("ranks as processes need a parent with one thread, but there are ", threads) +
            "; loading the backend or plan has started one, which L2 forbids");
  const Folder folder;
  std::vector<pid_t> processes;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(YOKE_RESOURCE_EXHAUSTED, concat("fork: ", std::strerror(errno)));
    if (pid == 0) run_rank(folder, rank, body);
    processes.push_back(pid);
  }
  const std::string failure = wait_for(processes, folder);
  if (!failure.empty()) throw conformance::Failed(failure);
  std::vector<std::string> results;
  for (int32_t rank = 0; rank < ranks; ++rank)
    results.push_back(contents(folder.of(std::to_string(rank))));
  return results;
}

}  // namespace yoke
