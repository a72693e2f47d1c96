// A signal handler may do very little, so it only sets flags. The training loop reads them before
// each call of the backend's step function, and collectives that wait poll the cancel flag. A
// collective in every step to agree on stopping was rejected: it would slow down every step for an
// event that happens once.
#include "core/run/stop.hpp"

#include <csignal>
#include <ctime>
#include <string>

#include "core/base/exit_code.hpp"
#include "core/base/signals.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Keys of the notes: the signal that a rank got, and rank 0's answer, "CALL SIGNAL".
constexpr const char* kRequestKey = "stop request";
constexpr const char* kStopKey = "stop before call";
std::atomic<int> g_signal{0};
std::atomic<int64_t> g_first{0};  // when the first signal arrived, in nanoseconds
std::atomic<bool> g_stop{false}, g_cancel{false}, g_report{false};

// clock_gettime() is one of the few functions that a signal handler may call.
int64_t now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The first signal is kept. A later one sets the cancel flag, unless it repeats the first.
void on_signal(int number) {
  int first = 0;
  if (g_first.load() == 0) g_first.store(now());
  if (g_signal.compare_exchange_strong(first, number)) {
    g_stop.store(true);
    return;
  }
  const bool repeated =
      first == number && now() - g_first.load() < std::chrono::nanoseconds(kSameSignal).count();
  if (!repeated) g_cancel.store(true);
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaction(number, &action, nullptr);
  struct sigaction report = action;
  report.sa_handler = [](int) { g_report.store(true); };
  sigaction(SIGQUIT, &report, nullptr);
  if (!ignores(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
}

int stop_signal() {
  return g_signal.load();
}
const std::atomic<bool>& stop_flag() {
  return g_stop;
}
const std::atomic<bool>& cancel_flag() {
  return g_cancel;
}

std::atomic<bool>& report_flag() {
  return g_report;
}

int exit_code_of_stop(int signal, bool saved) {
  if (signal == SIGINT) return kExitSigint;
  return saved ? kExitSaved : kExitSigterm;
}

bool StopAgreement::stop_now() {
  ++call_;
  if (world_.size() == 1) {
    signal_ = stop_signal();
    return signal_ != 0;
  }
  if (stop_signal() != 0 && !requested_) {
    requested_ = true;
    world_.post(kRequestKey, concat(stop_signal()));
  }
  if (world_.rank() == 0 && !published_) {
    if (const auto request = world_.peek(kRequestKey)) {
      published_ = true;
      // Another rank may already have made this call, so all ranks stop one call later.
      world_.post(kStopKey, concat(call_ + 1, " ", *request));
    }
  }
  const std::optional<std::string> agreed = world_.peek(kStopKey);
  if (!agreed || std::stoll(*agreed) > call_) return false;
  signal_ = std::stoi(agreed->substr(agreed->find(' ')));
  return true;
}

}  // namespace yoke
