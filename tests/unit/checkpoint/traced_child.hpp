// A child process whose system calls are counted with ptrace, so that a test can intervene at each
// of them: kill the child, or let the call fail. Works on x86-64 Linux.
#pragma once

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <string>

namespace yoke {

class TracedChild {
 public:
  struct Result {
    int calls = 0;          // number of counted system calls
    int exit_code = -1;     // -1 = killed
    long failed_call = -1;  // number of the call that was made to fail
  };

  // Returns true if the system call with this number is counted. All other calls run undisturbed.
  using Counts = std::function<bool(long number)>;

  // Runs f in a child and kills it before its k-th counted call; k starts at 1, 0 = never.
  static Result kill_at(int k, const Counts& counts, const std::function<int()>& f) {
    return run(k, 0, counts, f);
  }
  // Runs f in a child; its k-th counted call does nothing and returns -error.
  static Result fail_at(int k, int error, const Counts& counts, const std::function<int()>& f) {
    return run(k, error, counts, f);
  }
  // Receives the number of a system call, and the path of its file or folder; "" = none.
  using Show = std::function<void(long number, const std::string& path)>;
  // Runs f in a child to its end. Calls `show` at the start of each system call.
  static Result watch(const Show& show, const std::function<int()>& f) {
    return run(
        0, 0, [](long) { return false; }, f, show);
  }
  // Returns true if this machine lets a process trace its children.
  static bool works() {
    return run(
               0, 0, [](long) { return true; }, [] { return 7; })
               .exit_code == 7;
  }

 private:
  // Returns the path in a call's arguments: that of a descriptor, or a string in the child's
  // memory.
  static std::string path_of(pid_t child, const user_regs_struct& regs) {
    const auto number = static_cast<long>(regs.orig_rax);
    const std::string process = "/proc/" + std::to_string(child);
    char text[4096] = {};
    if (number == SYS_openat || number == SYS_mkdir || number == SYS_rename) {
      std::ifstream memory(process + "/mem", std::ios::binary);
      memory.seekg(static_cast<std::streamoff>(number == SYS_openat ? regs.rsi : regs.rdi));
      memory.getline(text, sizeof text, '\0');
    } else if (number == SYS_pwrite64 || number == SYS_fsync || number == SYS_fdatasync ||
               number == SYS_fallocate) {
      (void)!::readlink(
          (process + "/fd/" + std::to_string(regs.rdi)).c_str(), text, sizeof text - 1);
    }
    return text;
  }

  static Result run(int k,
                    int error,
                    const Counts& counts,
                    const std::function<int()>& f,
                    const Show& show = nullptr) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(99);
      ::raise(SIGSTOP);
      ::_exit(f());
    }
    Result result;
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) return result;
    ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD);
    bool entering = true, failing = false;
    for (;;) {
      ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
      ::waitpid(child, &status, 0);
      if (WIFEXITED(status)) {
        result.exit_code = WEXITSTATUS(status);
        return result;
      }
      if (WIFSIGNALED(status)) return result;
      if (!WIFSTOPPED(status) || WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
      user_regs_struct regs{};
      ::ptrace(PTRACE_GETREGS, child, nullptr, &regs);
      if (entering && show != nullptr) show(static_cast<long>(regs.orig_rax), path_of(child, regs));
      if (entering && counts(static_cast<long>(regs.orig_rax)) && ++result.calls == k) {
        if (error == 0) {
          ::kill(child, SIGKILL);
        } else {
          result.failed_call = static_cast<long>(regs.orig_rax);
          regs.orig_rax = static_cast<unsigned long long>(-1);  // no such call, so nothing happens
          ::ptrace(PTRACE_SETREGS, child, nullptr, &regs);
          failing = true;
        }
      } else if (!entering && failing) {
        regs.rax = static_cast<unsigned long long>(-error);
        ::ptrace(PTRACE_SETREGS, child, nullptr, &regs);
        failing = false;
      }
      entering = !entering;
    }
  }
};

}  // namespace yoke
