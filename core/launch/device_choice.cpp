#include "core/launch/device_choice.hpp"

#include <algorithm>
#include <string>

#include "yoke/error.hpp"
#include "yoke/parallel_backend.h"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr uint32_t bit(int32_t device) {
  return 1u << device;
}

// Returns why this run cannot compute on CUDA devices, and what to do instead; "" if it can.
std::string obstacle(const DeviceFacts& f) {
  if (f.driver.devices == 0)
    return f.driver.problem + "; " + f.driver.fix +
           (f.driver.is_faulty ? ", or use device=cpu" : "");
  if (!f.built)
    return "this Yoke was built without CUDA; use device=cpu, or build with YOKE_CUDA=ON on a "
           "machine with nvcc";
  if ((f.declared & bit(YOKE_DEVICE_CUDA)) == 0)
    return "backend '" + f.backend +
           "' does not declare that it can train on CUDA devices; use device=cpu, or another "
           "backend (yoke backends info NAME lists its devices)";
  if (f.threads)
    return "ranks that are threads (--virtual) can only use the CPU; use --nproc, or device=cpu";
  if (f.local_ranks > f.driver.devices)
    return concat(f.local_ranks,
                  " ranks are to start on this machine, which has ",
                  f.driver.devices,
                  f.driver.devices == 1 ? " CUDA device" : " CUDA devices",
                  ", and NCCL needs one for each; start fewer, or use device=cpu");
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
                  "backends info NAME lists its devices)");
}

std::string note_on_unused_devices(const DeviceFacts& facts) {
  if (facts.asked != "auto") return "";
  const NvidiaDriver& driver = facts.driver;
  DeviceFacts repaired = facts;
  if (driver.is_faulty) repaired.driver.devices = std::max(1, facts.local_ranks);
  if (repaired.driver.devices == 0) return "";  // there is none to use
  const std::string other = obstacle(repaired);
  // A driver is not worth repairing for a run that cannot use it.
  if (driver.is_faulty != other.empty()) return "";
  return "this run computes on the CPU: " +
         (driver.is_faulty ? driver.problem + "; " + driver.fix : other);
}

int32_t device_of_rank(int32_t local_rank, int32_t visible, const char* cuda_visible_devices) {
  if (visible == 1) return 0;
  if (local_rank < visible) return local_rank;
  const std::string variable =
      cuda_visible_devices == nullptr
          ? "CUDA_VISIBLE_DEVICES is not set"
          : std::string("CUDA_VISIBLE_DEVICES = '") + cuda_visible_devices + "'";
  throw Error(
      YOKE_INVALID_ARGUMENT,
      concat("there is no device for local rank ",
             local_rank,
             ": this process sees ",
             visible,
             " CUDA devices (",
             variable,
             "); start at most as many ranks on this machine, or make more devices visible"));
}

std::string missing_fp8_units(const std::string& product,
                              int32_t dtype,
                              bool has_fp8,
                              const std::string& gpu) {
  if (product != "fp8" || dtype != YOKE_BF16 || has_fp8) return "";
  return "precision.product = \"fp8\": this GPU, " + gpu +
         ", has no units for fp8, which NVIDIA's GPUs have since compute capability 8.9; set "
         "precision.product = \"param\" to multiply in bf16";
}

}  // namespace yoke
