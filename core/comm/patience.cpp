#include "core/comm/patience.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include "yoke/error.hpp"

namespace yoke {
namespace {

constexpr std::chrono::seconds kBetweenWords{5};
constexpr std::chrono::microseconds kLongestPause{5000};

}  // namespace

Patience::Patience(const CommOptions& options, std::string awaited)
    : options_(options),
      awaited_(std::move(awaited)),
      deadline_(Clock::now() + options.timeout),
      next_word_(Clock::now() + kBetweenWords) {}

bool Patience::wait(const State& state) {
  if (options_.cancel != nullptr && options_.cancel->load())
    throw Error(YOKE_CANCELLED, "cancelled while waiting for " + awaited_);
  const Clock::time_point now = Clock::now();
  if (now > deadline_) return false;
  if (state && options_.progress && now >= next_word_) {
    options_.progress(state());
    next_word_ = now + kBetweenWords;
  }
  std::this_thread::sleep_for(pause_);
  pause_ = std::min(pause_ * 2, kLongestPause);
  return true;
}

}  // namespace yoke
