// The processors of this process.
#pragma once

namespace yoke {

// Returns the number of processors that this process may use, at least 1.
int usable_cores();

// Returns the number of threads per rank where OMP_NUM_THREADS is not set: an equal part of the
// cores, at least 1.
int threads_per_rank(int cores, int local_ranks);

}  // namespace yoke
