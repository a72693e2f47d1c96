// How operators on DTensors come here: a kernel for the hot ones, without boxing, and a boxed
// fallback for all others. Both look up the same decision by operator, placements, sizes and
// non-tensor arguments; the first time a rule makes it.
#pragma once

namespace yoke::ptd {

// Takes kDTensorKey in LibTorch's dispatcher; once per process, any thread. FAILED_PRECONDITION if
// another library has it.
void register_dtensor();

}  // namespace yoke::ptd
