// LibTorch's own threads, for the row kernels.
#pragma once

#include <cstdint>
#include <functional>

namespace yoke {

// f(begin, end) over parts of [0, count) that hold at least `grain` elements, on
// at::get_num_threads() threads. Which parts there are depends on the number of threads: f must not
// let results depend on it.
void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& f);

}  // namespace yoke
