// Matrix products on the CPU.
#pragma once

namespace yoke::ops {

// Makes LibTorch's operators mm and addmm compute most products of fp32 matrices with oneDNN, for
// all callers in this process that use one thread (at::get_num_threads()), if that is faster than
// MKL on this processor. Returns whether it is, and false if oneDNN cannot be used. Has no effect
// from the second call on. Safe from any thread, if no other thread computes products during the
// first call.
bool use_fast_cpu_products();

}  // namespace yoke::ops
