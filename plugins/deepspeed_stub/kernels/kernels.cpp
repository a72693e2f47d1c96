#include "plugins/deepspeed_stub/kernels/kernels.hpp"

namespace yoke::deepspeed_stub {

extern const Kernels kernels_baseline;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512;
#endif

KernelSets all_kernels() {
  KernelSets found{{&kernels_baseline}, 1};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (avx2) found.set[found.count++] = &kernels_avx2;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) found.set[found.count++] = &kernels_avx512;
#endif
  return found;
}

const Kernels& kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const KernelSets all = all_kernels();
    return *all.set[all.count - 1];
  }();
  return best;
}

}  // namespace yoke::deepspeed_stub
