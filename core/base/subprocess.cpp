// A pidfd reports the end of the process while its output is read. Waiting for the end of the
// output instead would hang if the program leaves a background child that keeps the pipe open.
#include "core/base/subprocess.hpp"

#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "core/base/signals.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;

pid_t spawn(const std::vector<std::string>& argv, int out, int err) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (err >= 0) ::posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  // A launcher blocks signals and ignores SIGPIPE; the program must not inherit that.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, pipe;
  ::sigemptyset(&none);
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &pipe);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, words[0], &actions, &attributes, words.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw Error(YOKE_INTERNAL, "cannot start " + argv[0] + ": " + std::strerror(error));
  return pid;
}

int poll_timeout(const std::optional<Clock::time_point>& deadline) {
  if (!deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

// Reads both streams until the process has ended. The streams may still be open then, if a child of
// the process has inherited them.
void read_until_end(int process,
                    const Pipe& out,
                    const Pipe& err,
                    const std::optional<Clock::time_point>& deadline,
                    SubprocessResult& result) {
  pollfd fds[3] = {
      {process, POLLIN, 0}, {out.read_end.get(), POLLIN, 0}, {err.read_end.get(), POLLIN, 0}};
  std::string* texts[3] = {nullptr, &result.out, &result.err};
  while (fds[0].revents == 0) {
    const int ready = ::poll(fds, 3, poll_timeout(deadline));
    if (ready == 0) {
      result.timed_out = true;
      return;
    }
    if (ready < 0) continue;  // a signal handler ran
    for (int i : {1, 2}) {
      if (fds[i].revents != 0 && !read_available(fds[i].fd, *texts[i])) fds[i].fd = -1;
    }
  }
  // The process is gone, but the pipes may still hold what it wrote last.
  for (int i : {1, 2}) {
    if (fds[i].fd < 0) continue;
    ::fcntl(fds[i].fd, F_SETFL, O_NONBLOCK);
    for (size_t before = SIZE_MAX; before != texts[i]->size();) {
      before = texts[i]->size();
      read_available(fds[i].fd, *texts[i]);
    }
  }
}

// Starts a process by `start`, which gets the descriptors of its stdout and stderr, and waits until
// it has ended.
SubprocessResult run(const std::function<pid_t(int out, int err)>& start,
                     const SubprocessOptions& options) {
  Pipe out = make_pipe();
  Pipe err = options.capture_err ? make_pipe() : Pipe{};
  std::optional<Clock::time_point> deadline;
  if (options.limit) deadline = Clock::now() + *options.limit;

  const pid_t pid = start(out.write_end.get(), err.write_end.get());
  out.write_end.reset();
  err.write_end.reset();
  const FileDescriptor process = watch_child(pid);
  SubprocessResult result;
  read_until_end(process.get(), out, err, deadline, result);
  if (result.timed_out) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.ending = ending_of(status);
  return result;
}

// Removes all signal handlers, as exec() does.
void remove_handlers() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction current {};
    if (::sigaction(number, nullptr, &current) == 0 && current.sa_handler != SIG_IGN)
      ::signal(number, SIG_DFL);
  }
}

// Runs in the copy.
[[noreturn]] void run_body(const std::function<int()>& body, int out, int err) {
  remove_handlers();
  const FileDescriptor in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(in.get(), STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  if (err >= 0) ::dup2(err, STDERR_FILENO);
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

}  // namespace

std::string ending_text(const Ending& ending) {
  return ending.signal != 0 ? signal_name(ending.signal) : concat("exit code ", ending.exit_code);
}

Ending ending_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {-1, WTERMSIG(wait_status)};
  return {WEXITSTATUS(wait_status), 0};
}

FileDescriptor watch_child(pid_t pid) {
  // A raw system call, because glibc has the function only since 2.36. Everything else that Yoke
  // calls exists in glibc 2.34.
  FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (process.open()) return process;
  const std::string reason = std::strerror(errno);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  throw Error(YOKE_INTERNAL,
              "cannot watch a process (pidfd_open): " + reason + "; Linux 5.3 or newer is needed");
}

SubprocessResult run_subprocess(const std::vector<std::string>& argv,
                                const SubprocessOptions& options) {
  return run([&](int out, int err) { return spawn(argv, out, err); }, options);
}

SubprocessResult run_copy(const std::function<int()>& body, const SubprocessOptions& options) {
  std::fflush(nullptr);  // the copy must not print what is still in a buffer
  const auto start = [&](int out, int err) {
    const pid_t pid = ::fork();
    if (pid == 0) run_body(body, out, err);
    if (pid < 0)
      throw Error(YOKE_INTERNAL, concat("cannot start a process: ", std::strerror(errno)));
    return pid;
  };
  return run(start, options);
}

}  // namespace yoke
