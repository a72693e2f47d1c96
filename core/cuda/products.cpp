// Products by cuBLASLt, which LibTorch uses as well. Calling it directly allows three things that
// LibTorch's operators do not: the matrix that is added may be another than the result, so that a
// residual needs neither a copy nor an addition; 16-bit operands may be added to an fp32 result,
// which is what gradients over several micro-batches need; and the algorithm can be chosen by
// measuring.
//
// Handles and workspaces are our own. LibTorch's functions that return its own ones set up cuBLAS
// at every call, for which they parse CUBLAS_WORKSPACE_CONFIG, and its workspace of 1 MiB excludes
// the algorithms that divide the inner dim on a large GPU.
#include "core/cuda/products.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty_strided.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <limits>
#include <vector>

#include "core/cuda/column_major.hpp"

namespace yoke {
namespace {

// The workspace that NVIDIA recommends: for Hopper and later GPUs, and for earlier ones.
constexpr size_t kWorkspace = size_t{32} << 20, kSmallWorkspace = size_t{4} << 20;
constexpr int kProposals = 8;    // algorithms that are tried for a shape
constexpr int kRepetitions = 5;  // products per trial
// Trials write to memory of their own. For a larger result than this, nothing is tried.
constexpr int64_t kLargestTrial = int64_t{256} << 20;

void check(cublasStatus_t status, const char* call) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, call, ": ", cublasLtGetStatusName(status));
}

cudaDataType_t data_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return CUDA_R_64F;
    case at::kFloat:
      return CUDA_R_32F;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kBFloat16:
      return CUDA_R_16BF;
    default:
      TORCH_CHECK(false, "multiply: ", type, " is not a type of products");
  }
}

// Returns the largest power of two that divides the address, up to the widest access of a thread.
uint32_t alignment_of(const at::Tensor& t) {
  const auto address = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  uint32_t alignment = 16;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  Layout(const ColumnMajor& m, cudaDataType_t type) {
    check(cublasLtMatrixLayoutCreate(&handle,
                                     type,
                                     static_cast<uint64_t>(m.rows),
                                     static_cast<uint64_t>(m.columns),
                                     m.stride),
          "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
};

struct Description {
  cublasLtMatmulDesc_t handle = nullptr;
  Description(cublasComputeType_t compute, cudaDataType_t scale) {
    check(cublasLtMatmulDescCreate(&handle, compute, scale), "cublasLtMatmulDescCreate");
  }
  ~Description() { cublasLtMatmulDescDestroy(handle); }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;
  template <class V>
  void set(cublasLtMatmulDescAttributes_t attribute, const V& value) const {
    check(cublasLtMatmulDescSetAttribute(handle, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }
};

struct Preference {
  cublasLtMatmulPreference_t handle = nullptr;
  Preference() { check(cublasLtMatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate"); }
  ~Preference() { cublasLtMatmulPreferenceDestroy(handle); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  template <class V>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const V& value) const {
    check(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  }
};

}  // namespace

// The arguments of a product, in cuBLASLt's order: the first operand is b^T.
struct Products::Operands {
  const void* first;
  const void* second;
  const void* add;  // NULL = none
  void* out;
};

// What a product uses besides its matrices.
struct Products::Place {
  cublasLtHandle_t handle;
  cudaStream_t stream;
  void* workspace;
  size_t workspace_bytes;
};

// What decides which algorithms are possible, and which is the fastest.
struct Products::Shape {
  at::ScalarType type, out_type;
  bool adds, tf32;
  ColumnMajorProduct matrices;
  uint32_t alignment[4];
  c10::DeviceIndex device;

  auto operator<=>(const Shape&) const = default;
};

// How products of one shape are computed.
struct Products::Plan {
  Plan(const Shape& s, const Place& place)
      : wide(s.type == at::kDouble),
        first(s.matrices.first, data_type(s.type)),
        second(s.matrices.second, data_type(s.type)),
        add(s.matrices.add, data_type(s.out_type)),
        out(s.matrices.out, data_type(s.out_type)),
        product(wide     ? CUBLAS_COMPUTE_64F
                : s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                         : CUBLAS_COMPUTE_32F,
                wide ? CUDA_R_64F : CUDA_R_32F) {
    const auto op = [](const ColumnMajor& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    product.set(CUBLASLT_MATMUL_DESC_TRANSA, op(s.matrices.first));
    product.set(CUBLASLT_MATMUL_DESC_TRANSB, op(s.matrices.second));
    algorithms = proposals(s, place);
  }

  // Queues the product on the stream of the place.
  cublasStatus_t run(const Place& place,
                     const Operands& o,
                     const cublasLtMatmulAlgo_t& with) const {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* const one = wide ? static_cast<const void*>(&one64) : &one32;
    const void* const zero = wide ? static_cast<const void*>(&zero64) : &zero32;
    return cublasLtMatmul(place.handle,
                          product.handle,
                          one,
                          o.first,
                          first.handle,
                          o.second,
                          second.handle,
                          o.add != nullptr ? one : zero,
                          o.add != nullptr ? o.add : o.out,
                          add.handle,
                          o.out,
                          out.handle,
                          &with,
                          place.workspace,
                          place.workspace_bytes,
                          place.stream);
  }

  // Asks cuBLASLt which algorithms it expects to be the fastest, the best first.
  std::vector<cublasLtMatmulAlgo_t> proposals(const Shape& shape, const Place& place) const {
    const Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{place.workspace_bytes});
    // If the inner dim is divided between blocks, their sums are added in the type of the
    // computation. Other schemes round them to the type of the result first.
    preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.alignment[0]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.alignment[1]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.alignment[2]);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.alignment[3]);
    cublasLtMatmulHeuristicResult_t results[kProposals] = {};
    int count = 0;
    check(cublasLtMatmulAlgoGetHeuristic(place.handle,
                                         product.handle,
                                         first.handle,
                                         second.handle,
                                         add.handle,
                                         out.handle,
                                         preference.handle,
                                         kProposals,
                                         results,
                                         &count),
          "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    }
    TORCH_CHECK(!algorithms.empty(),
                "cuBLASLt cannot multiply matrices of ",
                shape.matrices.second.columns,
                " by ",
                shape.matrices.second.rows,
                " numbers");
    return algorithms;
  }

  const bool wide;
  const Layout first, second, add, out;
  const Description product;
  // More than one: they have not been measured yet.
  std::vector<cublasLtMatmulAlgo_t> algorithms;
};

namespace {

// Returns the milliseconds that `run` needs on the current stream, and waits for it. Returns
// infinity if it fails.
template <class F>
float time_of(const F& run) {
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  // The first time includes the loading of code.
  if (run() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
  begin.record();
  for (int i = 0; i < kRepetitions; ++i) run();
  end.record();
  end.synchronize();
  return begin.elapsed_time(end);
}

bool is_recording() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(at::cuda::getCurrentCUDAStream(), &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

Products::Products() = default;
Products::~Products() {
  for (const auto& [device, handle] : handles_) cublasLtDestroy(handle);
}

// Returns what products on the current stream of the current device use. Both are made once. A
// workspace belongs to one stream, on which products follow each other. Called with the mutex.
Products::Place Products::place(c10::DeviceIndex device) {
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream(device);
  cublasLtHandle_t& handle = handles_[device];
  if (handle == nullptr) check(cublasLtCreate(&handle), "cublasLtCreate");
  Workspace& workspace = workspaces_[{device, stream}];
  if (!workspace.memory) {
    const bool large = at::cuda::getDeviceProperties(device)->major >= 9;
    workspace.bytes = large ? kWorkspace : kSmallWorkspace;
    workspace.memory = at::cuda::getCUDADeviceAllocator()->allocate(workspace.bytes);
  }
  return {handle, stream, workspace.memory.get(), workspace.bytes};
}

void Products::multiply(const at::Tensor& out,
                        const at::Tensor& a,
                        const at::Tensor& b,
                        const at::Tensor& add) {
  if (out.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(out.device());
  const Shape shape{.type = a.scalar_type(),
                    .out_type = out.scalar_type(),
                    .adds = add.defined(),
                    .tf32 = a.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS(),
                    .matrices = column_major_product(out, a, b, add),
                    .alignment = {alignment_of(b),
                                  alignment_of(a),
                                  alignment_of(add.defined() ? add : out),
                                  alignment_of(out)},
                    .device = out.device().index()};
  const Operands operands{b.const_data_ptr(),
                          a.const_data_ptr(),
                          shape.adds ? add.const_data_ptr() : nullptr,
                          out.mutable_data_ptr()};
  const std::lock_guard lock(mutex_);
  const Place place = this->place(shape.device);
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan == nullptr) plan = std::make_unique<Plan>(shape, place);
  const int64_t out_bytes = out.size(0) * shape.matrices.out.stride * out.element_size();
  if (!measures_ || out_bytes > kLargestTrial) plan->algorithms.resize(1);
  if (plan->algorithms.size() > 1 && !is_recording()) choose(*plan, place, operands, out);
  check(plan->run(place, operands, plan->algorithms.front()), "cublasLtMatmul");
}

// Keeps the fastest algorithm, or the first one if there is no memory to try them. Each is tried on
// the same operands, but does not write to `out`, to which it may add.
void Products::choose(Plan& plan, const Place& place, Operands operands, const at::Tensor& out) {
  at::Tensor scratch;
  try {
    scratch = at::empty_strided(out.sizes(), out.strides(), out.options());
  } catch (const c10::OutOfMemoryError&) {
    plan.algorithms.resize(1);
    return;
  }
  operands.out = scratch.mutable_data_ptr();
  float least = std::numeric_limits<float>::infinity();
  cublasLtMatmulAlgo_t best = plan.algorithms.front();
  for (const cublasLtMatmulAlgo_t& algorithm : plan.algorithms) {
    const float time = time_of([&] { return plan.run(place, operands, algorithm); });
    if (time >= least) continue;
    least = time;
    best = algorithm;
  }
  plan.algorithms = {best};
}

}  // namespace yoke
