#include "core/kernels/cpu_kernels.hpp"

namespace yoke {

extern const CpuKernelTable kernels_baseline;
#ifdef YOKE_X86_KERNELS
extern const CpuKernelTable kernels_avx2, kernels_avx512;
#endif

// Each table requires several processor features: all that the flags of its compilation allow.
CpuKernelTables all_cpu_kernels() {
  CpuKernelTables found{{&kernels_baseline}, 1};
#ifdef YOKE_X86_KERNELS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  if (avx2) found.table[found.count++] = &kernels_avx2;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) found.table[found.count++] = &kernels_avx512;
#endif
  return found;
}

const CpuKernelTable& cpu_kernels() {
  static const CpuKernelTable& widest = []() -> const CpuKernelTable& {
    const CpuKernelTables all = all_cpu_kernels();
    return *all.table[all.count - 1];
  }();
  return widest;
}

}  // namespace yoke
