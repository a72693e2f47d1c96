#include "core/compare/case_process.hpp"

#include <poll.h>

#include <csignal>
#include <fstream>
#include <optional>

#include "core/base/signals.hpp"
#include "core/launch/rank_process.hpp"
#include "yoke/error.hpp"

namespace yoke::compare {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPoliteTime{3};  // time between SIGTERM and SIGKILL

volatile std::sig_atomic_t g_signal = 0;

// Forwards the output of the process until it has ended, `deadline` has passed or, if
// `heeds_signals`, a signal was caught. Returns true if the process has ended.
bool ended_before(RankProcess& process, Clock::time_point deadline, bool heeds_signals) {
  pollfd fds[] = {{process.process_fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  while (true) {
    fds[1].fd = process.out().open() ? process.out().fd() : -1;
    fds[2].fd = process.err().open() ? process.err().fd() : -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || (heeds_signals && g_signal != 0)) return false;
    // Waits in slices, because a signal may arrive between the check of g_signal and poll().
    if (::poll(fds, 3, static_cast<int>(std::min<int64_t>(left.count(), 200))) < 0) continue;
    if (fds[1].revents != 0) process.out().read_some();
    if (fds[2].revents != 0) process.err().read_some();
    if (fds[0].revents != 0) return true;
  }
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { g_signal = signal; };  // poll returns with EINTR
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (signal != SIGHUP || !ignores(signal)) ::sigaction(signal, &action, nullptr);
  }
}

int interrupted_by() {
  return g_signal;
}

CommandResult run_command(const RankCommand& command,
                          const std::string& log,
                          std::chrono::milliseconds limit) {
  std::ofstream out(log, std::ios::app);
  if (!out) throw Error(YOKE_INTERNAL, log + " cannot be written");
  const auto begin = Clock::now();
  CommandResult result;
  RankProcess process(0, command, [&](int, bool, const std::string& line) { out << line << '\n'; });
  if (!ended_before(process, begin + limit, true)) {
    result.timed_out = g_signal == 0;
    // The process may still write while it shuts down, so its output is forwarded during that time
    // too.
    process.send(SIGTERM);
    if (!ended_before(process, Clock::now() + kPoliteTime, false)) process.send(SIGKILL);
  }
  pollfd end{process.process_fd(), POLLIN, 0};
  while (::poll(&end, 1, -1) < 0) {
  }
  process.reap();
  result.ending = process.ending();
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  result.last_lines.assign(process.last_lines().begin(), process.last_lines().end());
  return result;
}

}  // namespace yoke::compare
