// Ranks as processes, for tests: runs a function in N child processes that meet at a Unix socket.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace yoke::test {

// How a child process ended.
struct RankEnd {
  int code = 0;    // exit code
  int signal = 0;  // signal that killed it; 0 = none
};

// The body of one rank. Receives the rank's number and the path of the socket.
using RankBody = std::function<void(int rank, const std::string& socket)>;

namespace detail {

// Returns the number of threads of this process. The parent forks its children, so it must have a
// single thread, and therefore must not have used LibTorch.
inline int num_threads() {
  namespace fs = std::filesystem;
  return static_cast<int>(
      std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator()));
}

[[noreturn]] inline void run_child(const RankBody& body, int rank, const std::string& socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    body(rank, socket);
    code = ::testing::Test::HasFailure() ? 1 : 0;
  } catch (const std::exception& e) {
    std::printf("rank %d: %s\n", rank, e.what());
    code = 1;
  }
  std::fflush(stdout);
  std::_Exit(code);
}

}  // namespace detail

// Runs body in n child processes and returns how each ended. A child in which an EXPECT fails or
// that does not catch an exception prints the failure and ends with exit code 1. Children that
// still run after `limit` are killed.
inline std::vector<RankEnd> spawn_ranks(int n,
                                        const RankBody& body,
                                        std::chrono::seconds limit = std::chrono::seconds(120)) {
  EXPECT_EQ(detail::num_threads(), 1) << "the parent of ranks must not have started threads";
  std::string folder = std::filesystem::temp_directory_path() / "yoke-ranks-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder: " + folder);
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) detail::run_child(body, rank, folder + "/socket");
    children.push_back(pid);
  }
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::vector<RankEnd> ends(n);
  for (int rank = 0; rank < n; ++rank) {
    int status = 0;
    while (waitpid(children[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(children[rank], SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (WIFEXITED(status)) ends[rank].code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ends[rank].signal = WTERMSIG(status);
  }
  std::filesystem::remove_all(folder);
  return ends;
}

// Runs body in n child processes like spawn_ranks, and expects that every rank succeeds.
inline void run_ranks(int n, const RankBody& body) {
  const auto ends = spawn_ranks(n, body);
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(ends[rank].code, 0) << "rank " << rank;
    EXPECT_EQ(ends[rank].signal, 0) << "rank " << rank;
  }
}

}  // namespace yoke::test
