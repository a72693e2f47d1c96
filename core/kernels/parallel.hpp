// Loops on LibTorch's own threads, for the row kernels.
#pragma once

#include <cstdint>
#include <functional>

namespace yoke {

// Splits [0, count) into ranges of at least `grain` elements, calls f(begin, end) for each on
// at::get_num_threads() threads, and returns when all calls have returned. The ranges depend on the
// number of threads, so results of f must not depend on the ranges.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& f);

}  // namespace yoke
