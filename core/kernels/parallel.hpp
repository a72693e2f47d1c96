// Loops on LibTorch's own threads, for the row kernels.
#pragma once

#include <cstdint>
#include <functional>

namespace yoke {

// Calls f(begin, end) for parts of [0, count) of at least `grain` elements, on
// at::get_num_threads() threads, and returns when all have ended. The bounds of the parts depend on
// the number of threads, so f must not let a result depend on them.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& f);

}  // namespace yoke
