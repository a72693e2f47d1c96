// A signal handler may do very little, so it only sets flags. The loop looks at them between steps,
// and waits inside collectives look at the cancel flag. A collective per step that asks all ranks
// was rejected: it would cost every step for an event that happens once.
#include "core/run/stop.hpp"

#include <csignal>
#include <string>

namespace yoke {
namespace {

constexpr const char* kStopKey = "stop before step";  // key on the store
std::atomic<int> g_signal{0};
std::atomic<bool> g_cancel{false};

// The first signal is kept; every later one sets the cancel flag.
void on_signal(int number) {
  int none = 0;
  if (!g_signal.compare_exchange_strong(none, number)) g_cancel.store(true);
}

}  // namespace

void install_stop_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() {
  return g_signal.load();
}
const std::atomic<bool>& cancel_flag() {
  return g_cancel;
}

bool StopAgreement::stop_before(int64_t step) {
  if (world_.size() == 1) return stop_signal() != 0;
  if (world_.rank() == 0 && stop_signal() != 0 && !published_) {
    // Another rank may already have entered this step, so all ranks stop one step later.
    world_.post(kStopKey, std::to_string(step + 1));
    published_ = true;
  }
  const std::optional<std::string> agreed = world_.peek(kStopKey);
  return agreed && std::stoll(*agreed) <= step;
}

}  // namespace yoke
