// Connects DTensors to LibTorch's dispatcher. The operators of a transformer have unboxed kernels,
// all others go through one boxed fallback. Both look up the same decision by operator, placements,
// sizes and non-tensor arguments; a rule makes the decision the first time.
#pragma once

namespace yoke::mesh {

// Registers the kernels for kDTensorKey, once per process. Any thread may call it. Throws
// Error(FAILED_PRECONDITION) if another library has taken that key.
void register_dtensor();

}  // namespace yoke::mesh
