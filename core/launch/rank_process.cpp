// Uses fork() and execve(), because the child must call prctl(PR_SET_PDEATHSIG), for which
// posix_spawn() has no attribute. The child makes only calls that are safe after a fork() of a
// process with several threads.
#include "core/launch/rank_process.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "core/base/console.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kKeptLines = 20;
constexpr size_t kLongestLine = 65536;  // bytes; a longer line is passed in parts

// Runs in the child, between fork() and execve(), so it may use async-signal-safe functions only.
[[noreturn]] void become(char* const* argv, char* const* envp, int out, int err, pid_t launcher) {
  ::setpgid(0, 0);
  // From this call on, the kernel kills this process when the launcher dies for any reason. If the
  // launcher died before this call, this process has a different parent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(127);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execve(argv[0], argv, envp);
  const char* text = std::strerror(errno);
  for (const char* part : {"cannot start ", static_cast<const char*>(argv[0]), ": ", text, "\n"}) {
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const RankCommand& command) {
  std::vector<std::string> merged;
  for (char** v = ::environ; *v != nullptr; ++v) {
    const std::string entry = *v;
    const std::string name = entry.substr(0, entry.find('='));
    bool replaced = false;
    for (const auto& [key, value] : command.variables) replaced = replaced || key == name;
    if (!replaced) merged.push_back(entry);
  }
  for (const auto& [key, value] : command.variables) merged.push_back(key + "=" + value);
  return merged;
}

}  // namespace

LineStream::LineStream(FileDescriptor fd, Sink sink) : fd_(std::move(fd)), sink_(std::move(sink)) {}

void LineStream::read_some() {
  const bool more = read_available(fd_.get(), text_);
  pass_lines(!more);
  if (!more) fd_.reset();
}

void LineStream::finish() {
  if (!fd_.open()) return;
  for (size_t before = SIZE_MAX; before != text_.size();) {
    before = text_.size();
    if (!read_available(fd_.get(), text_)) break;
  }
  pass_lines(true);
  fd_.reset();
}

void LineStream::pass_lines(bool all) {
  size_t begin = 0;
  for (size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    sink_(text_.substr(begin, end - begin));
  }
  text_.erase(0, begin);
  if (!text_.empty() && (all || text_.size() > kLongestLine)) {
    sink_(text_);
    text_.clear();
  }
}

RankProcess::RankProcess(int rank, const RankCommand& command, Show show)
    : rank_(rank),
      show_(std::move(show)),
      out_(FileDescriptor(), [this](const std::string& line) { keep(false, line); }),
      err_(FileDescriptor(), [this](const std::string& line) { keep(true, line); }) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  const std::vector<std::string> environment = merged_environment(command);
  const std::vector<char*> argv = pointers(command.argv);
  const std::vector<char*> envp = pointers(environment);
  const pid_t launcher = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0)
    become(argv.data(), envp.data(), out.write_end.get(), err.write_end.get(), launcher);
  if (pid_ < 0) {
    throw Error(YOKE_INTERNAL, concat("cannot start rank ", rank, ": ", std::strerror(errno)));
  }
  // The child makes this call too. Either process may run first, and send() must find the group in
  // both cases.
  ::setpgid(pid_, pid_);
  process_ = watch_child(pid_);
  for (Pipe* pipe : {&out, &err}) ::fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  out_ =
      LineStream(std::move(out.read_end), [this](const std::string& line) { keep(false, line); });
  err_ = LineStream(std::move(err.read_end), [this](const std::string& line) { keep(true, line); });
}

RankProcess::~RankProcess() {
  if (!running()) return;
  send(SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
}

void RankProcess::send(int signal) {
  if (running()) ::kill(-pid_, signal);
}

void RankProcess::reap() {
  // This must precede waitpid(), which releases the process number: afterwards, another program's
  // group could have it.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  ending_ = ending_of(status);
  process_.reset();
  out_.finish();
  err_.finish();
}

void RankProcess::keep(bool is_stderr, const std::string& line) {
  if (!line.starts_with(kProgressMark)) last_lines_.push_back(line);
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
  show_(rank_, is_stderr, line);
}

}  // namespace yoke
