// Polls instead of blocking, so that a run can be cancelled while a device or a peer is stuck. Near
// the time that the last wait took it polls without sleeping: the device is idle until the next
// step is issued, and the shortest sleep takes longer than the issue of a recorded step.
//
// LibTorch applies a timeout to collectives that are issued one by one, but not to those inside a
// replayed graph. Therefore a replay that takes far longer than any earlier step fails here.
#include "plugins/ptd/executor/stream_wait.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "yoke/error.hpp"

namespace yoke::ptd {

std::function<bool()> work_of_stream(c10::Device device) {
  if (device.is_cpu()) return [] { return true; };
  const auto end = std::make_shared<c10::Event>(device.type());
  end->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return [end] { return end->query(); };
}

void StreamWait::wait(const std::function<bool()>& done, std::optional<double> limit) {
  constexpr double kAwake = 2e-4;  // seconds without sleep, before and after the expected end
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  while (!done()) {
    const double now = waited();
    if (std::abs(now - latest_) < kAwake) continue;
    keep_waiting_();
    if (limit && longest_ > 0 && now > 2 * longest_ + *limit) {
      throw Error(
          YOKE_DEADLINE_EXCEEDED,
          "a recorded step did not finish: a rank hangs or is lost; ptd.cuda_graph=false reports "
          "the collective, a larger comm.timeout waits longer");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  latest_ = waited();
  longest_ = std::max(longest_, latest_);
}

}  // namespace yoke::ptd
