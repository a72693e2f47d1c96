#include "core/launch/restart_policy.hpp"

#include <array>

#include "core/base/exit_code.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;

// After an attempt that has saved a step, the next one follows at once. Otherwise the pauses grow,
// so that a machine that is just starting again gets the time to do so.
constexpr std::array<milliseconds, 3> kPauses{
    milliseconds(0), milliseconds(1000), milliseconds(3000)};
constexpr int kMostFruitless = 3;

}  // namespace

std::optional<milliseconds> RestartPolicy::next(int exit_code, std::optional<int64_t> saved_step) {
  reason_.clear();
  if (exit_code != kExitRankLost) return std::nullopt;
  if (saved_step) {
    const bool gained = *saved_step > saved_step_.value_or(-1);
    saved_step_ = saved_step;
    fruitless_ = gained ? 0 : fruitless_ + 1;
  }
  if (fruitless_ == kMostFruitless) {
    reason_ = concat(kMostFruitless, " attempts in a row have not saved a step");
    return std::nullopt;
  }
  if (left_ == 0) {
    if (used_ > 0) reason_ = concat("all ", used_, " restarts are used (--restarts)");
    return std::nullopt;
  }
  --left_;
  ++used_;
  return kPauses[static_cast<size_t>(fruitless_)];
}

}  // namespace yoke
