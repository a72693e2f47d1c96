// libyoke_cuda.so: the only part of Yoke that links libtorch_cuda. It implements DeviceRuntime and
// exports one function that returns it.
//
// By default, a watchdog thread of LibTorch's NCCL process group ends the process on an error or a
// timeout. That suits a job under a supervisor. Yoke reports errors through its own codes instead,
// so set_nccl_defaults() turns that off before the first group is made.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "core/cuda/device_operators.hpp"
#include "core/cuda/fp8_cast.hpp"
#include "core/cuda/products.hpp"

namespace yoke {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  ~CudaGraph() override {
    if (!recording_) return;
    try {
      graph_.capture_end();
    } catch (...) {  // an abandoned capture is invalid and is never replayed
    }
  }
  // The capture mode lets other threads, such as NCCL's watchdog and the data loader, use CUDA
  // meanwhile.
  void begin() override {
    // A capture allocates from a separate memory pool. It can neither use nor free the memory that
    // earlier steps have left in the allocator's cache, so that memory is freed first.
    c10::cuda::CUDACachingAllocator::emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    recording_ = true;
  }
  void end() override {
    recording_ = false;
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
  bool recording_ = false;
};

// Makes the process group report errors instead of ending the process. Variables that the user has
// set keep their values.
void set_nccl_defaults() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);  // 2 = only abort the communicators
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);     // the monitor thread aborts processes
  // Before an abort the watchdog sleeps four times this long, so that other ranks can write dumps.
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);
  // c10d warns at the first message that messages share the stream of their group. The groups of
  // pipelines are chosen such that they may (message_comms.hpp in sdk/mesh).
  ::setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "0", 0);
}

// cuBLAS may divide the inner dimension of a product between blocks, which it does for few tokens,
// and add their sums. LibTorch's default allows it to round the sums of a 16-bit product to 16 bits
// first. This forbids that for LibTorch's products; products.cpp forbids it for our own.
void add_parts_of_products_in_fp32() {
  at::globalContext().setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  at::globalContext().setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
}

void apply(const NcclSettings& settings, ncclConfig_t& config) {
  switch (settings.cta_policy) {
    case NcclSettings::CtaPolicy::kDefault:
      break;
    case NcclSettings::CtaPolicy::kEfficiency:
      config.CTAPolicy = NCCL_CTA_POLICY_EFFICIENCY;
      break;
    case NcclSettings::CtaPolicy::kZero:
      config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
      break;
  }
  if (settings.nvls_ctas > 0) config.nvlsCTAs = settings.nvls_ctas;
  // The first group reads this variable, and then registers all memory of LibTorch's allocator.
  if (settings.registers_memory) ::setenv("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "1", 1);
}

// Queues the search for the largest elements of a matrix and returns the scales that follow from
// them: one for all, or one for each line of `result`. Writes their inverses to result.unscale.
at::Tensor find_scales(const fp8_cast::Bf16Matrix& matrix,
                       fp8_cast::Lines lines,
                       const Fp8Matrix& result,
                       float limit,
                       void* stream) {
  const int64_t count = result.unscale.numel();
  const at::Tensor amax = at::zeros({count}, result.unscale.options().dtype(at::kInt));
  at::Tensor scales = at::empty({count}, result.unscale.options());
  auto* const bits = reinterpret_cast<uint32_t*>(amax.data_ptr<int32_t>());
  fp8_cast::find_amax(matrix, count == 1 ? fp8_cast::Lines::kAll : lines, bits, stream);
  fp8_cast::put_scales(
      {bits, scales.data_ptr<float>(), result.unscale.data_ptr<float>(), count, limit}, stream);
  return scales;
}

void* stream_of(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

struct OnDevice {
  template <class Operation>
  static void run(const Operation& operation, c10::Device device) {
    launch(operation, stream_of(device));
  }
};

class CudaRuntime final : public DeviceOperators<OnDevice> {
 public:
  CudaRuntime() {
    set_nccl_defaults();
    add_parts_of_products_in_fp32();
  }

  c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup& group,
                                                 c10::Device device) override {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = group.timeout;
    options->group_name = group.name;
    options->global_ranks_in_group.assign(group.ranks.begin(), group.ranks.end());
    apply(group.settings, options->config);
    if (group.parent != nullptr) {
      auto* const parent = static_cast<c10d::ProcessGroupNCCL*>(group.parent);
      options->split_from = c10::intrusive_ptr<c10d::ProcessGroupNCCL>::reclaim_copy(parent);
      options->split_color = group.ranks.front();  // the groups of one split have different ones
    }
    auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
        group.store, group.rank, static_cast<int>(group.ranks.size()), std::move(options));
    // Connects now rather than at the first collective, so that a failure is reported here.
    backend->setBoundDeviceId(device);
    backend->eagerConnectSingleDevice(device);
    return backend;
  }

  // groupStart() and groupEnd() make NCCL abort all communicators as one operation.
  void abort(const std::vector<c10d::Backend*>& groups) override {
    if (groups.empty()) return;
    auto& first = static_cast<c10d::ProcessGroupNCCL&>(*groups.front());
    first.groupStart();
    for (c10d::Backend* group : groups) group->abort();
    first.groupEnd();
  }

  std::unique_ptr<DeviceGraph> make_graph() override { return std::make_unique<CudaGraph>(); }

  // cuBLAS gives the same bits in every run only with workspaces of a fixed size. LibTorch would
  // also fill new tensors, which costs time; no kernel of a step reads what it has not written.
  void use_deterministic_kernels() override {
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    at::globalContext().setDeterministicCuDNN(true);
  }
  void measure_products(bool measures) override { products_.measure(measures); }

  void multiply(const at::Tensor& out,
                const at::Tensor& a,
                const at::Tensor& b,
                const at::Tensor& add) override {
    products_.multiply(out, a, b, add);
  }

  bool multiplies_fp8(c10::Device device) override {
    const cudaDeviceProp* const facts = at::cuda::getDeviceProperties(device.index());
    return facts->major * 10 + facts->minor >= 89;
  }

  void round_to_fp8(const at::Tensor& x,
                    const Fp8Matrix* as_is,
                    const Fp8Matrix* transposed) override {
    using fp8_cast::Lines;
    void* const stream = stream_of(x.device());
    const fp8_cast::Bf16Matrix matrix{
        static_cast<const uint16_t*>(x.const_data_ptr()), x.size(0), x.size(1)};
    const bool e5m2 =
        (as_is != nullptr ? as_is : transposed)->numbers.scalar_type() == at::kFloat8_e5m2;
    const float limit = e5m2 ? 57344 : 448;
    at::Tensor scales[2];
    fp8_cast::Target<uint8_t> targets[2];
    const Fp8Matrix* const results[2] = {as_is, transposed};
    for (int i = 0; i < 2; ++i) {
      if (results[i] == nullptr) continue;
      const Fp8Matrix& result = *results[i];
      const bool shared = i == 1 && as_is != nullptr && result.unscale.is_same(as_is->unscale);
      const Lines lines = i == 0 ? Lines::kRows : Lines::kColumns;
      scales[i] = shared ? scales[0] : find_scales(matrix, lines, result, limit, stream);
      targets[i] = {static_cast<uint8_t*>(result.numbers.data_ptr()),
                    scales[i].const_data_ptr<float>(),
                    result.unscale.dim() == 2,
                    result.numbers.size(1)};
    }
    fp8_cast::round_matrix(matrix, e5m2, targets[0], targets[1], stream);
  }

 private:
  Products products_;
};

}  // namespace
}  // namespace yoke

extern "C" __attribute__((visibility("default"))) yoke::DeviceRuntime* yoke_cuda_runtime() {
  // Never destroyed: at the end of a process, the libraries that it uses may be gone before.
  static auto* const runtime = new yoke::CudaRuntime;
  return runtime;
}
