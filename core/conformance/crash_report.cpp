// The handler runs on a stack of its own, because the usual one may have overflowed. It calls only
// functions that do not allocate: backtrace() does once, so it is called before there is a crash.
//
// The name of a function is given only if its symbol contains the address. The nearest symbol of a
// library with hidden functions would mostly be a wrong one.
#include "core/conformance/crash_report.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

namespace yoke {
namespace {

constexpr int kMostFrames = 32;
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
CrashReport g_report{};

// Returns the address of the instruction that has crashed, or NULL if that is unknown.
void* address_of(const void* context) {
#if defined(__x86_64__)
  return reinterpret_cast<void*>(
      static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  (void)context;
  return nullptr;
#endif
}

void write_frame(void* address) {
  Dl_info info{};
  void* extra = nullptr;
  if (::dladdr1(address, &info, &extra, RTLD_DL_SYMENT) == 0 || info.dli_fname == nullptr) return;
  const char* slash = std::strrchr(info.dli_fname, '/');
  const char* file = slash == nullptr ? info.dli_fname : slash + 1;
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
  const auto* symbol = static_cast<const ElfW(Sym)*>(extra);
  const bool inside = info.dli_sname != nullptr && symbol != nullptr &&
                      static_cast<const char*>(address) <
                          static_cast<const char*>(info.dli_saddr) + symbol->st_size;
  char line[512];
  const int size = std::snprintf(line,
                                 sizeof line,
                                 inside ? "%s%s+0x%zx (%s)\n" : "%s%s+0x%zx%s\n",
                                 g_report.before_frame,
                                 file,
                                 static_cast<size_t>(offset),
                                 inside ? info.dli_sname : "");
  if (size > 0 && ::write(g_report.fd, line, static_cast<size_t>(size)) < 0) return;
}

void on_crash(int signal, siginfo_t*, void* context) {
  if (g_report.write_head != nullptr) g_report.write_head(g_report.fd);
  void* frames[kMostFrames];
  const int count = ::backtrace(frames, kMostFrames);
  void* const crashed = address_of(context);
  int first = 0;  // the frames before it belong to this handler
  while (first < count && frames[first] != crashed) ++first;
  if (first == count) {
    first = 0;
    write_frame(crashed);
  }
  for (int i = first; i < count && i < first + g_report.most_frames; ++i) write_frame(frames[i]);
  ::raise(signal);  // SA_RESETHAND has restored the usual course
}

}  // namespace

void report_crashes(const CrashReport& report) {
  static char stack[1 << 16];
  g_report = report;
  void* frames[1];
  ::backtrace(frames, 1);
  const stack_t own{stack, 0, sizeof stack};
  ::sigaltstack(&own, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND | SA_NODEFER;
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
}

}  // namespace yoke
