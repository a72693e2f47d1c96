#include "core/stop.hpp"

#include <csignal>
#include <utility>

namespace yoke {
namespace {

std::atomic<int> g_signal{0};
std::atomic<bool> g_cancel{false};

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

int stop_signal() { return g_signal.load(); }
const std::atomic<bool>& cancel_flag() { return g_cancel; }

StopAgreement::StopAgreement(int32_t rank, int32_t world_size, Board board)
    : rank_(rank), world_size_(world_size), board_(std::move(board)) {}

bool StopAgreement::stop_before(int64_t step) {
  if (world_size_ == 1) return stop_signal() != 0;
  if (rank_ == 0 && stop_signal() != 0 && !published_) {
    board_.publish(step + 1);
    published_ = true;
  }
  const std::optional<int64_t> agreed = board_.look();
  return agreed && *agreed <= step;
}

}  // namespace yoke
