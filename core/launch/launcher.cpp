// One poll() loop waits for everything: signals (as data on a signalfd), the output of every rank,
// the end of every rank (a pidfd) and, if our own output is blocked, its reader. One thread per
// rank was rejected: the order in which ranks fail decides which one is reported, and only a single
// loop can observe that order.
//
// The difficult part is to name the rank that failed first. When a rank dies, its peers fail too
// within milliseconds, because their collectives lose a connection, and the operating system may
// report them in any order. Three rules help to find the first:
//   - After the first failure the launcher waits 200 ms for others before it decides.
//   - A rank killed by a signal is the most likely cause, then one that exited. A rank that only
//     lost a peer (exit code 5) is the least likely. first_cause() sorts by this.
//   - What ranks write to stderr is held back for 100 ms. If a rank fails within that time, the
//     lines of the other ranks, which repeat the failure in other words, are dropped.
#include "core/launch/launcher.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>

#include "core/base/console.hpp"
#include "core/base/exit_code.hpp"
#include "core/launch/rank_process.hpp"
#include "core/launch/signal_inbox.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kFirstCauseWindow{200};  // wait for a more likely cause
constexpr std::chrono::milliseconds kPoliteTime{1500};       // time from SIGTERM to SIGKILL
constexpr std::chrono::milliseconds kHeldBack{100};          // delay of lines on stderr
constexpr std::chrono::seconds kSameSignal{2};               // repeats within it count once
constexpr std::chrono::milliseconds kDrainTime{1000};        // limit for writing after a signal

bool is_one_of(int value, std::initializer_list<int> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

class Launch {
 public:
  Launch(const std::vector<RankCommand>& commands, const LaunchReport& run)
      : world_size_(run.world_size > 0 ? run.world_size : static_cast<int>(commands.size())),
        stop_(run.stop) {
    for (size_t i = 0; i < commands.size(); ++i) {
      ranks_.push_back(
          std::make_unique<RankProcess>(run.first_rank + static_cast<int>(i),
                                        commands[i],
                                        [this](int rank, bool is_stderr, const std::string& line) {
                                          show(rank, is_stderr, line);
                                        }));
    }
  }

  const std::string& cause() const { return cause_; }
  bool was_signalled() const { return forwarded_ != 0; }
  bool was_killed() const { return !failures_.empty() && first_cause().ending().signal != 0; }

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

  // Runs one round of the loop: waits for an event and handles everything that is ready.
  void turn() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    // If nobody reads our output, stop reading from the ranks, so that they block as they would on
    // a full pipe. A rank that has been signalled to end must not be blocked, so its output is
    // still read.
    const bool listens = !console_.full() || forwarded_ != 0 || ending_others_ || stopped_;
    for (const auto& r : ranks_) {
      fds.push_back({listens ? r->out().fd() : -1, POLLIN, 0});  // poll() ignores -1
      fds.push_back({listens ? r->err().fd() : -1, POLLIN, 0});
      fds.push_back({r->process_fd(), POLLIN, 0});
    }
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
      fds.push_back({console_.waiting_fd(fd), POLLOUT, 0});
    fds.push_back({stopped_ ? -1 : stop_.fd, POLLIN, 0});
    if (::poll(fds.data(), fds.size(), milliseconds_to_wait()) > 0) {
      if (fds[0].revents != 0) take_signals();
      for (size_t i = 0; i < ranks_.size(); ++i) {
        RankProcess& r = *ranks_[i];
        if (fds[3 * i + 1].revents != 0) r.out().read_some();
        if (fds[3 * i + 2].revents != 0) r.err().read_some();
        if (fds[3 * i + 3].revents != 0) take_ending(r);
      }
      if (fds.back().revents != 0) take_stop();
    }
    console_.write_some();
    release(Clock::now() - kHeldBack);
    take_deadline();
  }

  // Writes what is left after all ranks have ended. Returns when it is written, when a signal
  // arrives, or, after a forwarded signal, when kDrainTime has passed.
  void drain() {
    const auto until = forwarded_ != 0 ? Clock::now() + kDrainTime : Clock::time_point::max();
    while (Clock::now() < until) {
      pollfd fds[] = {{signals_.fd(), POLLIN, 0},
                      {console_.waiting_fd(STDOUT_FILENO), POLLOUT, 0},
                      {console_.waiting_fd(STDERR_FILENO), POLLOUT, 0}};
      if (fds[1].fd < 0 && fds[2].fd < 0) return;
      ::poll(fds, 3, forwarded_ != 0 ? kDrainTime.count() : -1);
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

  // Shows a line of a rank. After a failure nothing is shown: what the other ranks print only
  // repeats the failure, and is in their log files. They may notice a dead peer before the launcher
  // does, so lines on stderr are held back for a moment.
  void show(int rank, bool is_stderr, const std::string& line) {
    if (!failures_.empty()) return;
    if (line.starts_with(kProgressMark)) {
      console_.progress(line.substr(1));
      return;
    }
    const bool several = world_size_ > 1;
    const bool plain = !several || (rank == 0 && !is_stderr);
    std::string text = plain ? line : concat("[rank ", rank, "] ", line);
    if (several && is_stderr) {
      held_.push_back({Clock::now(), std::move(text)});
    } else {
      console_.line(is_stderr ? STDERR_FILENO : STDOUT_FILENO, text);
    }
  }

  // Writes the lines that arrived at the time `until` or earlier.
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
      if (signal == first_signal_ && Clock::now() - first_signal_at_ < kSameSignal) continue;
      if (forwarded_ != 0) {
        killed_ = true;
        send_all(SIGKILL);
        continue;
      }
      first_signal_ = signal;
      first_signal_at_ = Clock::now();
      forwarded_ = signal == SIGINT ? SIGINT : SIGTERM;
      console_.line(STDERR_FILENO,
                    "yoke: stopping after this step; a second signal ends the run at once");
      // A second signal would end a rank that is stopping already before it has saved.
      if (!stopped_) send_all(forwarded_);
    }
  }

  void take_stop() {
    stopped_ = true;
    if (forwarded_ != 0 || !failures_.empty()) return;  // the ranks are ending already
    console_.line(STDERR_FILENO, "yoke: " + stop_.reason());
    send_all(SIGUSR1);
  }

  // Returns true if the rank ended because of a signal, from the user, from this launcher, or from
  // a scheduler to one of the ranks, and not because of a failure.
  bool obeyed(const Ending& e) const {
    if (e.exit_code == kExitSaved) return true;
    const bool ended_by_us = is_one_of(e.exit_code, {kExitSigint, kExitSigterm}) ||
                             is_one_of(e.signal, {SIGINT, SIGTERM}) ||
                             (killed_ && e.signal == SIGKILL);
    // A rank that is stopped while it waits for the others loses them, or cannot save.
    const bool stopped_early = e.signal == SIGUSR1 || e.exit_code == kExitRankLost;
    if (forwarded_ != 0 || stopped_) return ended_by_us || (stopped_ && stopped_early);
    return ending_others_ && (ended_by_us || e.signal == SIGKILL);
  }

  void take_ending(RankProcess& r) {
    r.reap();
    saved_ = saved_ || r.ending().exit_code == kExitSaved;
    if (r.ending().ok() || reported_) return;
    if (obeyed(r.ending())) {
      stopped_early_ = stopped_early_ || stopped_;
      return;
    }
    failures_.push_back(&r);
    held_.clear();  // the report shows the last lines of the cause
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
    // A rank that only lost a peer is not the cause. That peer may not have ended yet, so the
    // report waits.
    if (!reported_ && first_cause().ending().exit_code != kExitRankLost) report();
  }

  // Returns 0 for the most likely kind of cause. Among failures of one kind, the earliest is the
  // cause.
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
    const bool several = world_size_ > 1;
    std::string text =
        several ? concat("yoke: rank ", r.rank(), " of ", world_size_) : "yoke: the worker";
    text += concat(" (process ",
                   r.pid(),
                   r.ending().signal != 0 ? ") was killed by " : ") failed with ",
                   ending_text(r.ending()));
    if (r.ending().signal == SIGKILL)
      text += ", perhaps by the kernel because memory ran out (see dmesg)";
    if (r.ending().exit_code == kExitRankLost) text += ": it lost a peer";
    if (several) text += "; the other ranks were ended";
    cause_ = text;
    console_.line(STDERR_FILENO, text);
    if (!several) return;  // the lines of a single rank are already on the screen
    console_.line(STDERR_FILENO,
                  r.last_lines().empty() ? "  it printed nothing" : "  its last lines:");
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
    if (forwarded_ == SIGINT) return kExitSigint;
    if (saved_) return kExitSaved;
    return forwarded_ != 0 || stopped_early_ ? kExitSigterm : kExitOk;
  }

  const int world_size_;
  const StopOrder stop_;
  Console console_;
  SignalInbox signals_;  // made before the ranks, so that no signal is lost while they start
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::vector<const RankProcess*> failures_;  // failed ranks in order of time
  std::deque<HeldLine> held_;                 // lines on stderr not yet shown
  // The time at which to stop waiting for a more likely cause or, once SIGTERM has been sent, the
  // time at which to send SIGKILL.
  std::optional<Clock::time_point> deadline_;
  int first_signal_ = 0;  // first signal received; 0 = none
  Clock::time_point first_signal_at_;
  int forwarded_ = 0;           // signal that was forwarded to the ranks; 0 = none
  bool killed_ = false;         // true after the user's second signal
  bool stopped_ = false;        // true after an order to stop
  bool stopped_early_ = false;  // true if a rank has ended because of it
  bool saved_ = false;          // true if a rank has stopped for a signal and saved
  bool ending_others_ = false;  // true once we have sent SIGTERM after a failure
  bool reported_ = false;       // true once the failure has been printed
  std::string cause_;           // first line of the report
};

}  // namespace

int launch_ranks(const std::vector<RankCommand>& commands, LaunchReport* report) {
  LaunchReport own;
  LaunchReport& run = report != nullptr ? *report : own;
  Launch launch(commands, run);
  const int exit_code = launch.run();
  run.cause = launch.cause();
  run.killed = launch.was_killed();
  run.signalled = launch.was_signalled();
  return exit_code;
}

}  // namespace yoke
