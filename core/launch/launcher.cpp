#include "core/launch/launcher.hpp"

#include <poll.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>

#include "core/base/console.hpp"
#include "core/base/exit_code.hpp"
#include "core/launch/rank_process.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kFirstCauseWindow{200};
constexpr std::chrono::milliseconds kPoliteTime{1500};
constexpr std::chrono::milliseconds kHeldBack{100};
constexpr std::chrono::milliseconds kLastWords{1000};

// Signals arrive as data on a file descriptor while this lives; stdout may lose its reader.
class SignalInbox {
 public:
  SignalInbox() {
    ::sigemptyset(&mask_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&mask_, signal);
    ::sigprocmask(SIG_BLOCK, &mask_, &old_mask_);
    old_pipe_ = ::signal(SIGPIPE, SIG_IGN);
    fd_.reset(::signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalInbox() {
    while (next() != 0) {
    }
    ::signal(SIGPIPE, old_pipe_);
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  int fd() const { return fd_.get(); }
  int next() {  // 0 = none
    signalfd_siginfo info{};
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo)
                                                                : 0;
  }

 private:
  sigset_t mask_{}, old_mask_{};
  void (*old_pipe_)(int) = nullptr;
  FileDescriptor fd_;
};

bool is_one_of(int value, std::initializer_list<int> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Launch {
 public:
  explicit Launch(const std::vector<RankCommand>& commands) {
    for (size_t i = 0; i < commands.size(); ++i) {
      ranks_.push_back(
          std::make_unique<RankProcess>(static_cast<int>(i),
                                        commands[i],
                                        [this](int rank, bool is_stderr, const std::string& line) {
                                          show(rank, is_stderr, line);
                                        }));
    }
  }

  int run() {
    while (any_running()) turn();
    release(Clock::time_point::max());
    if (!failures_.empty() && !reported_) report();
    drain();
    return exit_code();
  }

 private:
  struct HeldLine {
    Clock::time_point since;
    std::string text;
  };

  bool any_running() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& r) { return r->running(); });
  }

  // One round: waits for something to happen and deals with it.
  void turn() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    // If nobody reads what we write, ranks wait in turn, unless they are to end.
    const bool listens = !console_.full() || forwarded_ != 0 || ending_others_;
    for (const auto& r : ranks_) {
      fds.push_back({listens ? r->out().fd() : -1, POLLIN, 0});  // -1 is passed over by poll
      fds.push_back({listens ? r->err().fd() : -1, POLLIN, 0});
      fds.push_back({r->process_fd(), POLLIN, 0});
    }
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
      fds.push_back({console_.waiting_fd(fd), POLLOUT, 0});
    if (::poll(fds.data(), fds.size(), milliseconds_to_wait()) > 0) {
      if (fds[0].revents != 0) take_signals();
      for (size_t i = 0; i < ranks_.size(); ++i) {
        RankProcess& r = *ranks_[i];
        if (fds[3 * i + 1].revents != 0) r.out().read_some();
        if (fds[3 * i + 2].revents != 0) r.err().read_some();
        if (fds[3 * i + 3].revents != 0) take_ending(r);
      }
    }
    console_.write_some();
    release(Clock::now() - kHeldBack);
    take_deadline();
  }

  // What is still to be written when all ranks have ended: until it is, or a signal comes.
  void drain() {
    const auto until = forwarded_ != 0 ? Clock::now() + kLastWords : Clock::time_point::max();
    while (Clock::now() < until) {
      pollfd fds[] = {{signals_.fd(), POLLIN, 0},
                      {console_.waiting_fd(STDOUT_FILENO), POLLOUT, 0},
                      {console_.waiting_fd(STDERR_FILENO), POLLOUT, 0}};
      if (fds[1].fd < 0 && fds[2].fd < 0) return;
      ::poll(fds, 3, forwarded_ != 0 ? kLastWords.count() : -1);
      if (fds[0].revents != 0) return;
      console_.write_some();
    }
  }

  int milliseconds_to_wait() const {
    std::optional<Clock::time_point> until = deadline_;
    if (!held_.empty()) {
      const Clock::time_point release = held_.front().since + kHeldBack;
      until = until ? std::min(*until, release) : release;
    }
    if (!until) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*until - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(0, left));
  }

  // What survivors print about the first failure only repeats it and stays in their logs. They may
  // notice a dead peer before we do, so what ranks say on stderr waits for a moment.
  void show(int rank, bool is_stderr, const std::string& line) {
    if (!failures_.empty()) return;
    if (line.starts_with(kProgressMark)) {
      console_.progress(line.substr(1));
      return;
    }
    const bool several = ranks_.size() > 1;
    const bool plain = !several || (rank == 0 && !is_stderr);
    std::string text = plain ? line : "[rank " + std::to_string(rank) + "] " + line;
    if (several && is_stderr) {
      held_.push_back({Clock::now(), std::move(text)});
    } else {
      console_.line(is_stderr ? STDERR_FILENO : STDOUT_FILENO, text);
    }
  }

  // Writes what was held back since `until` or longer.
  void release(Clock::time_point until) {
    for (; !held_.empty() && held_.front().since <= until; held_.pop_front()) {
      console_.line(STDERR_FILENO, held_.front().text);
    }
  }

  void send_all(int signal) {
    for (const auto& r : ranks_) r->send(signal);
  }

  void take_signals() {
    while (const int signal = signals_.next()) {
      if (forwarded_ != 0) {
        killed_ = true;
        send_all(SIGKILL);
        continue;
      }
      forwarded_ = signal == SIGINT ? SIGINT : SIGTERM;
      console_.line(STDERR_FILENO,
                    "yoke: stopping after this step; the same signal again ends the run at once");
      send_all(forwarded_);
    }
  }

  // Did it end as it was told to, by the user or by us?
  bool obeyed(const Ending& e) const {
    const bool ended_by_us = is_one_of(e.exit_code, {kExitSigint, kExitSigterm}) ||
                             is_one_of(e.signal, {SIGINT, SIGTERM}) ||
                             (killed_ && e.signal == SIGKILL);
    if (forwarded_ != 0) return ended_by_us;
    return ending_others_ && (ended_by_us || e.signal == SIGKILL);
  }

  void take_ending(RankProcess& r) {
    r.reap();
    if (r.ending().ok() || obeyed(r.ending()) || reported_) return;
    failures_.push_back(&r);
    held_.clear();  // of the cause, the report shows it
    if (r.ending().signal != 0) {
      end_others();
    } else if (!ending_others_) {
      if (!deadline_) deadline_ = Clock::now() + kFirstCauseWindow;
    }
  }

  void take_deadline() {
    if (!deadline_ || Clock::now() < *deadline_) return;
    if (ending_others_) {
      send_all(SIGKILL);
      deadline_.reset();
    } else {
      end_others();
    }
  }

  void end_others() {
    if (!ending_others_) {
      ending_others_ = true;
      deadline_ = Clock::now() + kPoliteTime;
      send_all(SIGTERM);
    }
    // A rank that lost its peer is not the cause; the peer may still be on its way out.
    if (!reported_ && first_cause().ending().exit_code != kExitRankLost) report();
  }

  // Lower is more likely the cause; equal: the earlier one.
  static int order(const Ending& e) {
    if (e.signal != 0) return 0;
    return e.exit_code != kExitRankLost ? 1 : 2;
  }

  const RankProcess& first_cause() const {
    return **std::min_element(failures_.begin(), failures_.end(), [](auto* a, auto* b) {
      return order(a->ending()) < order(b->ending());
    });
  }

  void report() {
    reported_ = true;
    const RankProcess& r = first_cause();
    const bool several = ranks_.size() > 1;
    std::string text = "yoke: ";
    text += several ? "rank " + std::to_string(r.rank()) + " of " + std::to_string(ranks_.size())
                    : "the worker";
    text += " (process " + std::to_string(r.pid()) + ") ";
    text += r.ending().signal != 0 ? "was killed by " : "failed with ";
    text += ending_text(r.ending());
    if (r.ending().signal == SIGKILL)
      text += ", perhaps by the kernel for lack of memory (see dmesg)";
    if (r.ending().exit_code == kExitRankLost) text += ": it lost a peer";
    if (several) text += "; the other ranks were ended";
    console_.line(STDERR_FILENO, text);
    if (!several) return;  // its last lines stand just above
    console_.line(STDERR_FILENO,
                  r.last_lines().empty() ? "  it had printed nothing" : "  its last lines:");
    for (const std::string& line : r.last_lines()) console_.line(STDERR_FILENO, "    " + line);
  }

  int exit_code() const {
    if (!failures_.empty()) {
      const Ending& e = first_cause().ending();
      if (e.signal != 0) return kExitRankLost;
      const bool has_meaning = is_one_of(
          e.exit_code, {kExitUsage, kExitPlugin, kExitRankLost, kExitSigint, kExitSigterm});
      return has_meaning ? e.exit_code : kExitFailed;
    }
    if (forwarded_ != 0) return forwarded_ == SIGINT ? kExitSigint : kExitSigterm;
    return kExitOk;
  }

  Console console_;
  SignalInbox signals_;  // before the ranks: no signal may be lost while they start
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<const RankProcess*> failures_;  // in order of time; the first cause is one of them
  std::deque<HeldLine> held_;
  std::optional<Clock::time_point> deadline_;  // of the window for the first cause, then of SIGKILL
  int forwarded_ = 0;
  bool killed_ = false;
  bool ending_others_ = false;
  bool reported_ = false;
};

}  // namespace

int launch_ranks(const std::vector<RankCommand>& commands) {
  return Launch(commands).run();
}

}  // namespace yoke
