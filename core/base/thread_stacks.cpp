// A thread can only walk its own stack. So each thread gets a signal, and the handler, which may do
// very little, stores return addresses in a fixed array. Names are looked up afterwards, in the
// calling thread.
#include "core/base/thread_stacks.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int kMostFrames = 64;
constexpr std::chrono::milliseconds kAnswer{200};  // limit for one thread
constexpr std::chrono::milliseconds kAll{600};     // limit for all threads that do not answer

std::array<void*, kMostFrames> g_frames;
std::atomic<int> g_wanted{0};  // id of the thread that shall answer
std::atomic<int> g_depth{-1};  // number of frames, once it has

void on_request(int) {
  const int saved = errno;
  if (g_wanted.load() == static_cast<int>(::syscall(SYS_gettid)))
    g_depth.store(::backtrace(g_frames.data(), kMostFrames));
  errno = saved;
}

// "yoke::World::shutdown() (libyoke_worker.so)"
std::string frame_text(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "unknown code";
  const std::string library = std::filesystem::path(info.dli_fname).filename().string();
  if (info.dli_sname == nullptr) {
    const auto offset = static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
    return library + string_printf("+0x%tx", offset);
  }
  int status = -1;
  char* readable = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  const std::string name = status == 0 ? readable : info.dli_sname;
  std::free(readable);
  return name + " (" + library + ")";
}

std::vector<std::string> stack_of(int id, std::chrono::milliseconds& time_left) {
  g_depth.store(-1);
  g_wanted.store(id);
  if (::syscall(SYS_tgkill, ::getpid(), id, SIGRTMIN + 3) != 0) return {};
  const auto limit = std::min(kAnswer, time_left);
  const auto until = std::chrono::steady_clock::now() + limit;
  while (g_depth.load() < 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  if (g_depth.load() < 0) time_left -= limit;
  g_wanted.store(0);
  std::vector<std::string> frames;
  // The first two frames are the handler and the kernel's return from it.
  for (int i = 2; i < g_depth.load(); ++i)
    frames.push_back(frame_text(g_frames[static_cast<size_t>(i)]));
  return frames;
}

}  // namespace

std::vector<ThreadStack> thread_stacks() {
  // The first call of backtrace() loads a library, which a handler must not do.
  void* ignored[1];
  ::backtrace(ignored, 1);
  struct sigaction action {};
  action.sa_handler = on_request;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGRTMIN + 3, &action, nullptr);

  const int self = static_cast<int>(::syscall(SYS_gettid));
  std::vector<int> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const int id = std::atoi(entry.path().filename().c_str());
    if (id != self) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());  // the main thread has the smallest number
  std::vector<ThreadStack> stacks;
  std::chrono::milliseconds time_left = kAll;
  for (const int id : ids) {
    ThreadStack stack{id, "", stack_of(id, time_left)};
    std::ifstream(concat("/proc/self/task/", id, "/comm")) >> stack.name;
    stacks.push_back(std::move(stack));
  }
  return stacks;
}

}  // namespace yoke
