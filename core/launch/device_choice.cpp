#include "core/launch/device_choice.hpp"

#include <string>

#include "yoke/error.hpp"

namespace yoke {

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
