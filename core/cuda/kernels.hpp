// The operations that a device executes with kernels of our own. What one thread does is defined in
// headers that also compile for the CPU, where the tests run the threads of an operation one after
// the other and compare the results with a composition of ATen operators. There are four kinds:
//
//   elements    run<n>(first)                computes n neighbouring elements
//   rows        run<n>(row, thread, threads) computes the share of a thread of a row
//   reductions  part<n>(row, thread, threads), then finish(row, all parts merged)
//   passes      the same, but finish<n>(row, all parts merged, thread, threads) computes the share
//               of a thread
//
// Operation::kKind says which one an operation is. The rows of an operation with passes are divided
// between blocks() blocks: block b processes the rows b, b + blocks(), ...
// n is kWidth if takes_packs(), and otherwise 1.
#pragma once

#include "core/cuda/adamw.hpp"
#include "core/cuda/cross_entropy.hpp"
#include "core/cuda/rms_norm.hpp"
#include "core/cuda/rotary.hpp"
#include "core/cuda/state_hash.hpp"
#include "core/cuda/swiglu.hpp"

namespace yoke {

// Queues an operation on `stream`, a cudaStream_t. Does not throw: if a launch fails, the next use
// of the stream reports it. An operation on one type T is defined for double, float, c10::Half and
// c10::BFloat16; SumOfLines for results of type T or Wide<T>, AdamWUpdate for the types of
// takes_adamw() in yoke/torch_device.hpp, and StateHash for unsigned integers of 8 to 64 bits.
template <class Operation>
void launch(const Operation& operation, void* stream);

}  // namespace yoke
