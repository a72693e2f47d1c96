// The interface to libyoke_cuda.so, which contains everything that needs libtorch_cuda or our
// own kernels: NCCL, CUDA graphs, fused operators. A program that computes on the CPU never loads
// it. All other work on a device goes through c10, which is in the CPU half of LibTorch.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/cuda/nccl_settings.hpp"
#include "yoke/parallel_backend.h"
#include "yoke/torch_device.hpp"

namespace yoke {

// A group of ranks that exchange tensors in device memory.
struct DeviceGroup {
  std::string name;
  c10::intrusive_ptr<c10d::Store> store;  // store that belongs to this group alone
  std::vector<int32_t> ranks;             // global ranks of the members, ascending
  int32_t rank = 0;                       // index of this rank in ranks
  std::chrono::milliseconds timeout{};    // limit of each collective
  NcclSettings settings{};
  // A connected group of all ranks that this group is split from; NULL = connect it on its own. A
  // split is collective over the parent: all its ranks must connect a group at the same time.
  c10d::Backend* parent = nullptr;
};

// The result of rounding a matrix [rows, columns] to fp8, or its transpose.
struct Fp8Matrix {
  // e4m3 or e5m2, contiguous. [rows, columns], or for the transpose [columns, n] with n >= rows and
  // zeros behind the rows. n is a multiple of 4.
  at::Tensor numbers;
  // Factors of the numbers in fp32: [1], or one for each line of `numbers` as [lines, 1].
  at::Tensor unscale;
};

// What DeviceRuntime::rms_norm_backward() writes.
struct NormGradients {
  at::Tensor dx, dweight;
  bool accumulates = false;
};

// One per process. Functions that queue work use the current stream of the calling thread.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  // Returns a connected NCCL process group with its own high-priority stream. Collective over
  // the group. A collective that fails or times out later aborts the group and is reported by
  // getError(); it does not end the process. Throws std::exception.
  virtual c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group,
                                                         c10::Device device) = 0;
  // Aborts groups made by connect_nccl(), all at once. Aborting them one by one would hang: freeing
  // a group waits for the device, and thus for the unfinished kernels of the other groups.
  virtual void abort(const std::vector<c10d::Backend*>& groups) = 0;
  // Returns an empty CUDA graph. See DeviceGraph.
  virtual std::unique_ptr<DeviceGraph> make_graph() = 0;
  // Operators. Tensors are contiguous and, unless it is stated otherwise, all of one of the types
  // fp64, fp32, fp16 and bf16. "Wide" numbers are fp64 if that type is fp64, and otherwise fp32. An
  // undefined tensor is an argument that is not given. The arguments that an operator writes come
  // first.
  //
  // Writes to `out` [M, N] the product of a [M, K] and b [K, N], plus `add` [M, N] if it is given.
  // The rows of out and add, and the rows or the columns of a and b, are contiguous, but need not
  // follow each other immediately. out and add have the same type: that of a and b, or fp32 if
  // those are 16-bit numbers. `add` may be `out`. Sums of 16-bit numbers are fp32 until they are
  // written. Throws std::exception for any other tensors.
  virtual void multiply(const at::Tensor& out,
                        const at::Tensor& a,
                        const at::Tensor& b,
                        const at::Tensor& add) = 0;
  // Rotates the heads of one or two tensors x[i] [B, S, heads, D] by `sign` times the angles whose
  // cosines and sines are [B, S, D / 2], wide. Writes to out[i], which may be x[i]. The heads of a
  // token are contiguous, but the tokens need not follow each other immediately.
  virtual void rotary(const std::vector<at::Tensor>& out,
                      const std::vector<at::Tensor>& x,
                      const at::Tensor& cos,
                      const at::Tensor& sin,
                      double sign) = 0;
  // Writes y = x * scale * weight with scale = 1 / sqrt(mean(x^2) + eps) of each row of x [N, D].
  // weight: [D]. scales: wide [N].
  virtual void rms_norm(const at::Tensor& y,
                        const at::Tensor& scales,
                        const at::Tensor& x,
                        const at::Tensor& weight,
                        double eps) = 0;
  // Writes the gradients of x and weight, given that of y. residual [N, D]: a gradient that is
  // added to dx. out.dweight: [D], of the type of x or wide. out.accumulates: the gradient of the
  // weight is added to what dweight contains; dx is always overwritten.
  virtual void rms_norm_backward(const NormGradients& out,
                                 const at::Tensor& dy,
                                 const at::Tensor& residual,
                                 const at::Tensor& x,
                                 const at::Tensor& weight,
                                 const at::Tensor& scales) = 0;
  // Makes one step of AdamW or a variant. Types: see takes_adamw().
  virtual void adamw(const AdamWTensors& tensors) = 0;
  // Writes silu(gate) * up. All shapes are equal. The rows (the last dim) of gate and up may have
  // gaps between them, which are equally large in both.
  virtual void swiglu(const at::Tensor& out, const at::Tensor& gate, const at::Tensor& up) = 0;
  // Writes the gradients of gate and up, given that of the output. dgate and dup may have such gaps
  // as well.
  virtual void swiglu_backward(const at::Tensor& dgate,
                               const at::Tensor& dup,
                               const at::Tensor& gate,
                               const at::Tensor& up,
                               const at::Tensor& dy) = 0;
  // Writes the loss and the log-sum-exp, both wide [N], of each row of logits [N, V]. The rows need
  // not follow each other immediately. targets: int64 [N]. The loss of a row is 0 if its target is
  // ops::kIgnoredTarget, and NaN if its target is outside [0, V).
  virtual void cross_entropy(const at::Tensor& losses,
                             const at::Tensor& lse,
                             const at::Tensor& logits,
                             const at::Tensor& targets) = 0;
  // Overwrites the logits with the gradient of the sum of all losses times dy, a wide scalar.
  virtual void cross_entropy_backward(const at::Tensor& logits,
                                      const at::Tensor& targets,
                                      const at::Tensor& lse,
                                      const at::Tensor& dy) = 0;
  // Adds the hash of a piece of state, see state_hash() of core/verify, to `sum` (int64 [], modulo
  // 2^64). piece.view is contiguous memory of the same device, and must stay valid for the queued
  // work. Throws std::exception unless its elements have 1, 2, 4 or 8 bytes.
  virtual void add_state_hash(const at::Tensor& sum, const YokePiece& piece) = 0;
  // Makes LibTorch use only kernels that give the same bits in every run, also where they are
  // slower than others. Call it before the first operator. Affects the whole process.
  virtual void use_deterministic_kernels() = 0;
  // Decides whether multiply() tries several algorithms at the first product of a shape, and keeps
  // the fastest. Not for results above 256 MiB, nor while a graph is recorded. The algorithms
  // differ in the last bits. Call it before the first operator. Affects the whole process.
  virtual void measure_products(bool measures) = 0;
  // Returns whether the device has units for products in fp8.
  virtual bool multiplies_fp8(c10::Device device) = 0;
  // Rounds the contiguous bf16 matrix x, whose address is a multiple of 16 bytes and whose number
  // of columns is a multiple of 16, and fills the tensors of `as_is` and `transposed`; NULL = not
  // wanted. If both are wanted, they have the same dtype. The scales are those of fp8::scale_of():
  // one for each line of a result whose `unscale` is [lines, 1], and otherwise one for x. Results
  // with one scale may share the tensor `unscale`.
  virtual void round_to_fp8(const at::Tensor& x,
                            const Fp8Matrix* as_is,
                            const Fp8Matrix* transposed) = 0;
};

// Returns the runtime of this process. The first call loads libyoke_cuda.so, from the folder of
// this library, and LibTorch's CUDA half with it. Throws Error(FAILED_PRECONDITION) if either
// cannot be loaded. Thread-safe.
DeviceRuntime& cuda_runtime();

// Returns true if libyoke_cuda.so is present, i.e. Yoke was built with CUDA. Loads nothing.
bool has_cuda_library();

// Makes cuda_runtime() return `runtime` from now on, or the loaded one again if it is NULL.
// emulates: runs_on() becomes true for the CPU and for meta tensors, so that whole models use the
// runtime's operators. For tests. Not thread-safe.
void replace_cuda_runtime(DeviceRuntime* runtime, bool emulates = false);

// Returns whether the operators of cuda_runtime() are those for tensors on this device. Loads
// nothing. Thread-safe.
bool runs_on(c10::Device device);
bool runs_on(const YokeDevice& device);

// The function that libyoke_cuda.so exports, and its name.
using CudaEntry = DeviceRuntime* (*)();
inline constexpr const char* kCudaEntry = "yoke_cuda_runtime";

}  // namespace yoke
