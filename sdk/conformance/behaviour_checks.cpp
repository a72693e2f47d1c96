// Most of the state is read from /proc/self, because the C library has no function that lists
// threads or descriptors.
#include "sdk/conformance/behaviour_checks.hpp"

#include <fcntl.h>
#include <fenv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "yoke/text.hpp"

extern char** environ;

namespace yoke::conformance {
namespace {

namespace fs = std::filesystem;

// Waits until a condition holds, for at most a second. Returns whether it does.
template <class Condition>
bool within_a_second(const Condition& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::map<int, std::string> open_files() {
  std::map<int, std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const std::string target = fs::read_symlink(entry.path(), error).string();
    // Skip the descriptor that this loop itself has open.
    if (!error && target.find("/proc/") != 0)
      files[std::stoi(entry.path().filename().string())] = target;
  }
  return files;
}

std::map<int, std::string> signal_table() {
  std::map<int, std::string> table;
  for (int signal = 1; signal < 65; ++signal) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0) continue;
    table[signal] =
        string_printf("%p flags %x", reinterpret_cast<void*>(now.sa_handler), now.sa_flags);
  }
  return table;
}

unsigned floating_point_mode() {
  unsigned mode = static_cast<unsigned>(::fegetround());
#if defined(__SSE2__)
  mode = mode << 16 | (_mm_getcsr() & 0xffc0u);  // without the status flags, which arithmetic sets
#endif
  return mode;
}

int64_t resident_memory_kib() {
  std::ifstream in("/proc/self/statm");
  int64_t total = 0, resident = 0;
  in >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE) / 1024;
}

}  // namespace

ProcessState ProcessState::capture() {
  ProcessState s;
  s.threads = static_cast<int>(thread_ids().size());
  s.files = open_files();
  for (char** v = environ; *v != nullptr; ++v) s.environment.emplace_back(*v);
  std::sort(s.environment.begin(), s.environment.end());
  std::error_code error;
  s.folder = fs::current_path(error).string();
  s.locale = std::setlocale(LC_ALL, nullptr);
  s.signals = signal_table();
  s.floating_point = floating_point_mode();
  s.file_mask = ::umask(0);
  ::umask(s.file_mask);
  s.resident_kib = resident_memory_kib();
  return s;
}

std::string ProcessState::changed_since(const ProcessState& before) const {
  if (folder != before.folder)
    return "the current directory is " + folder + ", was " + before.folder;
  if (locale != before.locale) return "the locale is " + locale + ", was " + before.locale;
  if (file_mask != before.file_mask) return "the file mask (umask) has changed";
  if (floating_point != before.floating_point)
    return "the floating-point mode (rounding, exceptions or denormals) has changed";
  for (const auto& [signal, action] : signals) {
    const auto was = before.signals.find(signal);
    if (was == before.signals.end() || was->second != action)
      return concat("the handler of signal ", signal, " (", ::strsignal(signal), ") has changed");
  }
  if (environment != before.environment) {
    std::vector<std::string> changed;
    std::set_symmetric_difference(environment.begin(),
                                  environment.end(),
                                  before.environment.begin(),
                                  before.environment.end(),
                                  std::back_inserter(changed));
    return "the environment has changed: " + (changed.empty() ? "" : changed.front());
  }
  for (const auto& [fd, target] : files) {
    const auto was = before.files.find(fd);
    if (was == before.files.end()) return concat("descriptor ", fd, " is open: ", target);
    if (was->second != target)
      return concat("descriptor ", fd, " is ", target, " now, was ", was->second);
  }
  for (const auto& [fd, target] : before.files) {
    if (files.count(fd) == 0) return concat("descriptor ", fd, " (", target, ") has been closed");
  }
  return "";
}

bool threads_return_to(int threads) {
  return within_a_second([&] { return thread_ids().size() <= static_cast<size_t>(threads); });
}

std::set<int> thread_ids() {
  std::set<int> ids;
  for (const auto& entry : fs::directory_iterator("/proc/self/task"))
    ids.insert(std::stoi(entry.path().filename().string()));
  return ids;
}

size_t threads_left(const std::set<int>& known) {
  size_t others = 0;
  within_a_second([&] {
    others = 0;
    for (const int thread : thread_ids()) others += known.count(thread) == 0 ? 1 : 0;
    return others == 0;
  });
  return others;
}

CapturedOutput::CapturedOutput() : file_(::memfd_create("printed", MFD_CLOEXEC)) {
  std::fflush(nullptr);
  out_ = ::dup(STDOUT_FILENO);
  err_ = ::dup(STDERR_FILENO);
  ::dup2(file_, STDOUT_FILENO);
  ::dup2(file_, STDERR_FILENO);
}

CapturedOutput::~CapturedOutput() {
  std::fflush(nullptr);
  ::dup2(out_, STDOUT_FILENO);
  ::dup2(err_, STDERR_FILENO);
  for (const int fd : {file_, out_, err_}) ::close(fd);
}

std::string CapturedOutput::printed() const {
  std::fflush(nullptr);
  std::string text(static_cast<size_t>(std::max<off_t>(0, ::lseek(file_, 0, SEEK_CUR))), '\0');
  if (::pread(file_, text.data(), text.size(), 0) < 0) text.clear();
  return text;
}

}  // namespace yoke::conformance
