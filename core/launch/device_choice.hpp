// Which CUDA device a rank of this machine takes. Pure; no LibTorch.
#pragma once

#include <cstdint>

namespace yoke {

// The index among the `visible` devices of this process: 0 if it sees exactly one (the launcher
// gave each rank its own), else local_rank. CUDA numbers only what CUDA_VISIBLE_DEVICES leaves;
// `cuda_visible_devices`, NULL = not set, is for the message. Throws Error(INVALID_ARGUMENT) if
// there is none for this rank.
int32_t device_of_rank(int32_t local_rank, int32_t visible, const char* cuda_visible_devices);

}  // namespace yoke
