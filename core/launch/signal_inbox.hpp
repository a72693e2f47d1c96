// The signals that ask a launcher to end, as data.
#pragma once

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "core/base/file_descriptor.hpp"
#include "core/base/signals.hpp"

namespace yoke {

// While this object lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are blocked in the thread
// that made it, and in those that it starts. They arrive as data on a file descriptor, and writing
// to a closed pipe returns an error instead of killing us. SIGHUP stays as it is if the process
// ignores it, since a blocked signal would arrive in spite of that. Objects may be nested; the
// innermost one gets the signals, and what it has not read is left to the others. The outermost one
// discards the rest.
class SignalInbox {
 public:
  SignalInbox() {
    ::sigemptyset(&mask_);
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) ::sigaddset(&mask_, signal);
    if (!ignores(SIGHUP)) ::sigaddset(&mask_, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &mask_, &old_mask_);
    old_pipe_ = ::signal(SIGPIPE, SIG_IGN);
    fd_.reset(::signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalInbox() {
    const bool outermost = ::sigismember(&old_mask_, SIGTERM) == 0;
    while (outermost && next() != 0) {
    }
    ::signal(SIGPIPE, old_pipe_);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const { return fd_.get(); }
  // Returns the next signal; 0 = none.
  int next() {
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }
  // Waits for a signal for at most `limit`, and returns it; 0 = none.
  int next_within(std::chrono::milliseconds limit) {
    pollfd readable{fd_.get(), POLLIN, 0};
    ::poll(&readable, 1, static_cast<int>(limit.count()));
    return next();
  }

 private:
  sigset_t mask_{}, old_mask_{};
  void (*old_pipe_)(int) = nullptr;
  FileDescriptor fd_;
};

}  // namespace yoke
