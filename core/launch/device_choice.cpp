#include "core/launch/device_choice.hpp"

#include <string>

#include "yoke/error.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {
namespace {

constexpr uint32_t bit(int32_t device) {
  return 1u << device;
}

// Why this run cannot compute on CUDA devices, and what to do instead; "" = it can.
std::string obstacle(const DeviceFacts& f) {
  if (f.driver.devices == 0)
    return f.driver.problem + "; use device=cpu, or run on a machine with an NVIDIA GPU";
  if (!f.built)
    return "this Yoke was built without CUDA; use device=cpu, or build with YOKE_CUDA=ON where "
           "nvcc "
           "is";
  if ((f.declared & bit(YOKE_DEVICE_CUDA)) == 0)
    return "backend '" + f.backend +
           "' does not declare that it can train there; use device=cpu, or "
           "another backend (yoke backends info NAME lists devices)";
  if (f.threads)
    return "ranks that are threads (--virtual) compute on the CPU; use --nproc, or device=cpu";
  if (f.local_ranks > f.driver.devices)
    return std::to_string(f.local_ranks) + " ranks are to start on this machine, which shows " +
           std::to_string(f.driver.devices) + " CUDA device" + (f.driver.devices == 1 ? "" : "s") +
           " and NCCL wants one for each; start fewer, or use device=cpu";
  return "";
}

}  // namespace

bool runs_on_cuda(const DeviceFacts& facts) {
  if (facts.asked != "cpu") {
    const std::string why_not = obstacle(facts);
    if (why_not.empty()) return true;
    if (facts.asked == "cuda") throw Error(YOKE_INVALID_ARGUMENT, "device = cuda, but " + why_not);
  }
  if ((facts.declared & bit(YOKE_DEVICE_CPU)) != 0) return false;
  throw Error(YOKE_INVALID_ARGUMENT,
              "device = " + facts.asked + ", but backend '" + facts.backend +
                  "' does not declare that it can train on the CPU; use another backend (yoke "
                  "backends info NAME lists devices)");
}

int32_t device_of_rank(int32_t local_rank, int32_t visible, const char* cuda_visible_devices) {
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  const std::string variable =
      cuda_visible_devices == nullptr
          ? "CUDA_VISIBLE_DEVICES is not set"
          : std::string("CUDA_VISIBLE_DEVICES = '") + cuda_visible_devices + "'";
  throw Error(YOKE_INVALID_ARGUMENT,
              "local rank " + std::to_string(local_rank) + ", but this process sees " +
                  std::to_string(visible) + " CUDA devices (" + variable +
                  "); start at most as many ranks on this machine, or make more devices visible");
}

}  // namespace yoke
