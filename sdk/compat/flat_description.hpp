// What backends describe alike that train on flat buffers.
#pragma once

#include <vector>

#include "yoke/backend.hpp"

namespace yoke::compat {

// Returns the description of such a backend: all degrees, ZeRO stages 0 and 1, in fp32, fp64 and
// bf16, on the CPU and on CUDA devices. The texts must be literals, and options must live
// as long as the process.
YokeDescription flat_description(const char* name,
                                 const char* version,
                                 const char* summary,
                                 const std::vector<const YokeOptionInfo*>& options);

}  // namespace yoke::compat
