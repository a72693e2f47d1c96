// The only file that is compiled with OpenMP. Without OpenMP the template at::parallel_for runs
// serially.
#include "core/kernels/parallel.hpp"

#include <ATen/Parallel.h>

namespace yoke {

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& f) {
  at::parallel_for(0, count, grain, f);
}

}  // namespace yoke
