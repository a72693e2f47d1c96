// A rank waits for microseconds if its peer is only a little behind, or for seconds if the peer is
// still starting. So the pauses start short, for latency, and double up to a limit, so that a long
// wait takes little time of a core and few requests to the store.
#include "core/comm/polling.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr std::chrono::seconds kBetweenReports{5};
constexpr std::chrono::microseconds kLongestPause{5000};

}  // namespace

PollLoop::PollLoop(const CommOptions& options, std::string awaited, Limit limit)
    : options_(options),
      awaited_(std::move(awaited)),
      deadline_(limit == Limit::kNone ? Clock::time_point::max() : Clock::now() + options.timeout),
      next_report_(Clock::now() + kBetweenReports) {}

bool PollLoop::sleep(const Status& status) {
  // A cancelled wait is reported as such even if its deadline has passed as well.
  if (options_.cancel != nullptr && options_.cancel->load())
    throw Error(YOKE_CANCELLED, "cancelled while waiting for " + awaited_);
  const Clock::time_point now = Clock::now();
  if (now > deadline_) return false;
  if (status && options_.progress && now >= next_report_) {
    options_.progress(status());
    next_report_ = now + kBetweenReports;
  }
  std::this_thread::sleep_for(pause_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  return true;
}

}  // namespace yoke
