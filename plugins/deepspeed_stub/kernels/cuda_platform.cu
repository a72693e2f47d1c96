// The CUDA platform: stream-ordered memory from its own pool, and kernels that run operations.hpp.
//
// All work is issued to the rank's stream, so allocations, frees and kernels are ordered without
// any wait. Only upload and download wait. The CUDA runtime is linked statically, so the plugin
// loads on a machine without driver or toolkit, and it does not depend on LibTorch's version of
// CUDA.
#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "plugins/deepspeed_stub/kernels/device_kernels.hpp"
#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "yoke/error.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr int kThreads = 256;      // threads per block
constexpr int64_t kBlocks = 2048;  // limit of a grid; beyond it each thread processes more elements
constexpr int64_t kRows = 65535;   // limit of a grid along y, set by CUDA
constexpr int64_t kStaging = 1 << 18;  // bytes that are copied from or to the host at a time

void check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that a later check does not report it again
  throw Error(YOKE_INTERNAL,
              std::string("CUDA could not ") + what + ": " + cudaGetErrorString(code));
}

// Sets this thread's current device in the plugin's CUDA runtime. It must be set before each call,
// and need not be restored, because LibTorch's runtime keeps a separate one. Errors are not checked
// here: the next call reports them.
void make_current(int device) {
  cudaSetDevice(device);
}

struct CudaQueue : Queue {
  ~CudaQueue() {
    if (parts != nullptr) cudaFreeAsync(parts, stream);
    // cudaFreeHost waits for the device, which may never finish after a failure. In that case the
    // memory is leaked.
    if (staging != nullptr && cudaStreamQuery(stream) == cudaSuccess) cudaFreeHost(staging);
    if (pool != nullptr) cudaMemPoolDestroy(pool);
  }
  int device = 0;
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
  double* parts = nullptr;  // one partial sum of a norm per block, kNormBlocks in all
  void* staging = nullptr;  // page-locked memory of the host, kStaging bytes
};

CudaQueue& of(Queue* queue) {
  return *static_cast<CudaQueue*>(queue);
}

// ---- Kernels ----

template <class Operation>
__global__ void __launch_bounds__(kThreads) elements_kernel(Operation operation, int64_t n) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (operation.begin()) run_share(operation, n, thread, int64_t{gridDim.x} * blockDim.x);
}

template <class Operation>
__global__ void __launch_bounds__(kThreads) rows_kernel(Operation operation, Rows rows) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (int64_t row = blockIdx.y; row < number_of(rows); row += gridDim.y)
    run_row(operation, rows, row, thread, int64_t{gridDim.x} * blockDim.x);
}

// Adds up the sums of all threads of a block, in the order of fold, and stores the result.
__device__ void store_block_sum(double* sums, double* to) {
  for (int half = kNormThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    fold(sums, threadIdx.x, half);
  }
  if (threadIdx.x == 0) *to = sums[0];
}

template <class T>
__global__ void __launch_bounds__(kNormThreads) norm_kernel(const T* x, int64_t n, double* parts) {
  __shared__ double sums[kNormThreads];
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  sums[threadIdx.x] = norm_share(x, n, thread, int64_t{gridDim.x} * blockDim.x);
  store_block_sum(sums, &parts[blockIdx.x]);
}

__global__ void __launch_bounds__(kNormThreads)
    parts_kernel(const double* parts, int n, double* sum) {
  __shared__ double sums[kNormThreads];
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = thread < n ? parts[thread] : 0;
  store_block_sum(sums, sum);
}

template <class Function>
__global__ void once_kernel(Function function) {
  function();
}

// Implements the parameter Launch of DeviceKernels.
class CudaLaunch {
 public:
  template <class Operation>
  static void elements(Queue* queue, const Operation& operation, int64_t n) {
    if (n == 0) return;
    start(queue, elements_kernel<Operation>, blocks<Operation>(n), kThreads, operation, n);
  }

  template <class Operation>
  static void rows(Queue* queue, const Operation& operation, const Rows& rows) {
    if (rows.total == 0) return;
    const dim3 grid(blocks<Operation>(rows.width),
                    static_cast<unsigned>(smaller(number_of(rows), kRows)));
    start(queue, rows_kernel<Operation>, grid, kThreads, operation, rows);
  }

  template <class T>
  static void squared_norm(Queue* queue, int64_t count, const T* x, double* sum) {
    const int blocks = norm_blocks<T>(count);
    double* const parts = of(queue).parts;
    start(queue, norm_kernel<T>, blocks, kNormThreads, x, count, parts);
    start(queue, parts_kernel, 1, kNormThreads, parts, blocks, sum);
  }

  template <class Function>
  static void once(Queue* queue, const Function& function) {
    start(queue, once_kernel<Function>, 1, 1, function);
  }

 private:
  template <class Operation>
  static unsigned blocks(int64_t n) {
    constexpr int64_t kPerBlock = int64_t{kThreads} * Operation::kWidth;
    return static_cast<unsigned>(smaller((n + kPerBlock - 1) / kPerBlock, kBlocks));
  }

  template <class... Parameter, class... Argument>
  static void start(Queue* queue,
                    void (*kernel)(Parameter...),
                    dim3 grid,
                    int threads,
                    const Argument&... arguments) {
    const CudaQueue& cuda = of(queue);
    make_current(cuda.device);
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = cuda.stream;
    check(cudaLaunchKernelEx(&config, kernel, Parameter(arguments)...), "start a kernel");
  }
};

const Kernels& kernels_cuda() {
  static constexpr Kernels table = DeviceKernels<CudaLaunch>::table("cuda");
  return table;
}

// ---- Memory ----

void* allocate(Queue* queue, int64_t bytes) {
  const CudaQueue& cuda = of(queue);
  make_current(cuda.device);
  void* memory = nullptr;
  const auto size = static_cast<size_t>(bytes > 0 ? bytes : 1);
  const cudaError_t code = cudaMallocFromPoolAsync(&memory, size, cuda.pool, cuda.stream);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                "CUDA device " + std::to_string(cuda.device) + " does not have " +
                    std::to_string(size) +
                    " bytes of free memory; use a higher ZeRO stage, more ranks or a smaller "
                    "train.micro_batch");
  }
  check(code, "allocate device memory");
  return memory;
}

void release(Queue* queue, void* memory) noexcept {
  make_current(of(queue).device);
  cudaFreeAsync(memory, of(queue).stream);
}

// The pool keeps freed memory, because the next step needs it again.
cudaMemPool_t make_pool(int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &properties), "make a pool of device memory");
  uint64_t keep = UINT64_MAX;
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  return pool;
}

Queue* open(const YokeDevice& device, void* stream) {
  make_current(device.id);
  auto cuda = std::make_unique<CudaQueue>();
  cuda->device = device.id;
  cuda->stream = static_cast<cudaStream_t>(stream);
  cuda->pool = make_pool(device.id);
  cuda->parts = static_cast<double*>(allocate(cuda.get(), kNormBlocks * sizeof(double)));
  check(cudaMallocHost(&cuda->staging, kStaging), "allocate page-locked memory");
  return cuda.release();
}

void close(Queue* queue) noexcept {
  make_current(of(queue).device);
  delete &of(queue);
}

void zero(Queue* queue, void* memory, int64_t bytes) {
  make_current(of(queue).device);
  check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), of(queue).stream), "zero memory");
}

void upload(Queue* queue, const void* host, void* memory, int64_t bytes) {
  const CudaQueue& cuda = of(queue);
  make_current(cuda.device);
  for (int64_t done = 0; done < bytes; done += kStaging) {
    const auto part = static_cast<size_t>(smaller(kStaging, bytes - done));
    char* const to = static_cast<char*>(memory) + done;
    std::memcpy(cuda.staging, static_cast<const char*>(host) + done, part);
    check(cudaMemcpyAsync(to, cuda.staging, part, cudaMemcpyHostToDevice, cuda.stream), "copy");
    check(cudaStreamSynchronize(cuda.stream), "finish the work of the stream");
  }
}

void download(Queue* queue, const void* memory, void* host, int64_t bytes) {
  const CudaQueue& cuda = of(queue);
  make_current(cuda.device);
  for (int64_t done = 0; done < bytes; done += kStaging) {
    const auto part = static_cast<size_t>(smaller(kStaging, bytes - done));
    const char* const from = static_cast<const char*>(memory) + done;
    check(cudaMemcpyAsync(cuda.staging, from, part, cudaMemcpyDeviceToHost, cuda.stream), "copy");
    check(cudaStreamSynchronize(cuda.stream), "finish the work of the stream");
    std::memcpy(static_cast<char*>(host) + done, cuda.staging, part);
  }
}

void* allocate_host(Queue* queue, int64_t bytes, bool pinned) {
  const size_t size = (static_cast<size_t>(bytes) + 63) / 64 * 64 + 64;  // never 0
  if (!pinned) {
    void* const pageable = std::aligned_alloc(64, size);
    if (pageable == nullptr) throw std::bad_alloc();
    return pageable;
  }
  make_current(of(queue).device);
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, size, cudaHostAllocDefault) == cudaSuccess) return memory;
  cudaGetLastError();
  throw Error(YOKE_RESOURCE_EXHAUSTED,
              "the host cannot page-lock " + std::to_string(size) +
                  " bytes for offload; raise ulimit -l, or set pin_memory = false");
}

void release_host(Queue* queue, void* memory, bool pinned) noexcept {
  if (!pinned) return std::free(memory);
  make_current(of(queue).device);
  // As in ~CudaQueue: cudaFreeHost would wait for a device that has failed.
  if (cudaStreamSynchronize(of(queue).stream) == cudaSuccess) cudaFreeHost(memory);
}

// From pageable memory the driver copies through memory of its own, in the order of the stream.
void issue_upload(Queue* queue, const void* host, void* memory, int64_t bytes) {
  make_current(of(queue).device);
  check(cudaMemcpyAsync(
            memory, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, of(queue).stream),
        "copy");
}

void issue_download(Queue* queue, const void* memory, void* host, int64_t bytes) {
  make_current(of(queue).device);
  check(cudaMemcpyAsync(
            host, memory, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, of(queue).stream),
        "copy");
}

void* mark(Queue* queue) {
  make_current(of(queue).device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
        "create an event");
  const cudaError_t recorded = cudaEventRecord(event, of(queue).stream);
  if (recorded != cudaSuccess) cudaEventDestroy(event);
  check(recorded, "record an event");
  return event;
}

void drop(Queue* queue, void* mark) noexcept {
  make_current(of(queue).device);
  cudaEventDestroy(static_cast<cudaEvent_t>(mark));
}

void await(Queue* queue, void* mark) {
  make_current(of(queue).device);
  const cudaError_t code = cudaEventSynchronize(static_cast<cudaEvent_t>(mark));
  drop(queue, mark);
  check(code, "finish the work of the stream");
}

}  // namespace

const Platform* cuda_platform() {
  static constexpr Platform platform = {kernels_cuda,
                                        open,
                                        close,
                                        allocate,
                                        release,
                                        zero,
                                        upload,
                                        download,
                                        allocate_host,
                                        release_host,
                                        issue_upload,
                                        issue_download,
                                        mark,
                                        await,
                                        drop};
  return &platform;
}

}  // namespace yoke::deepspeed_stub
