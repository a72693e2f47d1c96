// Flat copies between the floating-point dtypes of state.
#pragma once

#include <cstdint>

namespace yoke {

// Whether convert() can go from one dtype to the other: equal ones, any two of fp64, fp32, bf16,
// and from fp16 to fp32 and fp64.
bool can_convert(int32_t from, int32_t to);

// Copies count elements. Widening is exact; the way back rounds once, to nearest even (also
// fp64 -> bf16); what is too large becomes infinite, NaN stays NaN. src and dst need no
// alignment.
void convert(const void* src, int32_t from, void* dst, int32_t to, int64_t count);

}  // namespace yoke
