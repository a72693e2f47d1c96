#include "core/base/cores.hpp"

#include <sched.h>

#include <algorithm>

namespace yoke {

int usable_cores() {
  // The affinity mask is what taskset, cpusets and launchers restrict. Counting the processors of
  // the machine would start too many threads on a rank that may use only some of them.
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

int threads_per_rank(int cores, int local_ranks) {
  return std::max(1, cores / std::max(1, local_ranks));
}

}  // namespace yoke
