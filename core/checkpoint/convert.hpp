// Conversion between the floating-point dtypes in which state may be stored.
#pragma once

#include <cstdint>

namespace yoke {

// Returns true if convert() accepts this pair: two equal dtypes, any two of fp64, fp32 and bf16, or
// fp16 to fp32 or fp64.
bool can_convert(int32_t from, int32_t to);

// Copies `count` elements from src to dst, which need no alignment and must not overlap. Widening
// is exact. Narrowing rounds once to the nearest value, ties to even; this includes fp64 to bf16. A
// value that is too large becomes infinite, and NaN stays NaN. Throws Error (FAILED_PRECONDITION)
// for other pairs.
void convert(const void* src, int32_t from, void* dst, int32_t to, int64_t count);

}  // namespace yoke
