// On the CPU, LibTorch computes products in fp32 and fp64 with MKL, which uses AVX-512 on Intel's
// processors only. LibTorch also contains oneDNN, for products in narrower types, which uses
// AVX-512 wherever it exists. On an AMD Zen 5, oneDNN's primitive took half as long as MKL for the
// products of a training step (bench/products), before small ones had a kernel of their own
// (small_products.cpp). On Intel's processors MKL stays, because it has no such handicap there. It
// stays for fp64 as well, which oneDNN does not have.
//
// Only ranks with one thread use oneDNN, and block the signals of that thread: some fp32 kernels of
// oneDNN 3.10, which LibTorch 2.11 contains, use the stack pointer as a general register, so a
// signal handler would write to the heap (https://github.com/uxlfoundation/oneDNN/issues/4845). The
// kernels for bf16 do not. Signals of the threads of OpenMP cannot be controlled from here, so
// ranks that use several threads have MKL.
//
// The kernels replace those of LibTorch in its dispatcher. So products of distributed tensors, of
// optimizers, and of models and backends that others write become faster too, and profilers and
// ProductMeter observe the same operators as before. Rejected: calling oneDNN in our fused
// operators, because none of these other callers would benefit; another library for products,
// because every machine that runs Yoke would have to install it.
#include "core/kernels/cpu_products.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUFunctions.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <signal.h>
#include <torch/library.h>

#include "core/kernels/small_products.hpp"

namespace at::native {

// Computes result = beta * result + alpha * a b with oneDNN, for alpha != 0. If beta is 0, result
// is not read. LibTorch exports this function but installs no header for it. Its address is null if
// a LibTorch does not export it; for that the symbol must not be hidden, as our own symbols are.
[[gnu::weak, gnu::visibility("default")]] void mkldnn_matmul(
    const Tensor& a, const Tensor& b, const Tensor& result, float beta, float alpha);

}  // namespace at::native

namespace yoke::ops {
namespace {

// Blocks the signals of the calling thread, except for those that report a crash of it.
class BlockedSignals {
 public:
  BlockedSignals() {
    static const sigset_t all = [] {
      sigset_t set;
      ::sigfillset(&set);
      for (const int crash : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
        ::sigdelset(&set, crash);
      return set;
    }();
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

// Computes out = a b, or out += a b, for operands that takes() accepts.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool add) {
  const BlockedSignals blocked;
  if (is_small_product(a, b))
    multiply_small(a, b, out, add);
  else
    at::native::mkldnn_matmul(a, b, out, /*beta=*/add ? 1 : 0, /*alpha=*/1);
}

bool onednn_is_faster() {
#if defined(__x86_64__)
  if (&at::native::mkldnn_matmul == nullptr || __builtin_cpu_is("intel") ||
      !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq"))
    return false;
  try {
    // Fails if LibTorch was built without oneDNN, or if the environment forbids it AVX-512.
    const at::Tensor one = at::ones({1, 1}), product = at::zeros({1, 1});
    multiply(one, one, product, /*add=*/false);
    return product.item<float>() == 1;
  } catch (const std::exception&) {
    return false;
  }
#else
  return false;
#endif
}

bool is_matrix(const at::Tensor& t) {
  return t.dim() == 2 && t.is_cpu() && t.scalar_type() == at::kFloat && !t.has_names();
}

// oneDNN would copy matrices with gaps between their rows.
bool is_dense(const at::Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous();
}

// Returns whether oneDNN computes the product. LibTorch's kernels do the rest, and report invalid
// arguments. oneDNN's primitive needs more preparation than MKL, so it gets no product of fewer
// than kLeast multiplications.
bool takes(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kLeast = 1 << 20;  // multiplications
  if (!is_matrix(a) || !is_matrix(b) || a.size(1) != b.size(0) || at::get_num_threads() != 1 ||
      !at::globalContext().userEnabledMkldnn())
    return false;
  return is_small_product(a, b) ||
         (is_dense(a) && is_dense(b) &&
          static_cast<double>(a.numel()) * static_cast<double>(b.size(1)) >= kLeast);
}

// `out` is the result of a product for which takes() returns true.
bool takes_result(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return is_matrix(out) && out.is_contiguous() && out.size(0) == a.size(0) &&
         out.size(1) == b.size(1);
}

// copy_() broadcasts `add` to the result, and reports shapes that do not fit.
bool takes_sum(const at::Tensor& add, const at::Scalar& beta, const at::Scalar& alpha) {
  return beta.equal(1) && alpha.equal(1) && add.is_cpu() && add.scalar_type() == at::kFloat &&
         !add.has_names();
}

at::Tensor empty_product(const at::Tensor& a, const at::Tensor& b) {
  return at::Tensor(at::detail::empty_cpu({a.size(0), b.size(1)}, a.options()));
}

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  if (!takes(a, b)) return at::cpu::mm(a, b);
  at::Tensor out = empty_product(a, b);
  multiply(a, b, out, /*add=*/false);
  return out;
}

at::Tensor& mm_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!takes(a, b) || !takes_result(out, a, b)) return at::cpu::mm_out(out, a, b);
  multiply(a, b, out, /*add=*/false);
  return out;
}

at::Tensor addmm(const at::Tensor& add,
                 const at::Tensor& a,
                 const at::Tensor& b,
                 const at::Scalar& beta,
                 const at::Scalar& alpha) {
  if (!takes(a, b) || !takes_sum(add, beta, alpha)) return at::cpu::addmm(add, a, b, beta, alpha);
  at::Tensor out = empty_product(a, b);
  out.copy_(add);
  multiply(a, b, out, /*add=*/true);
  return out;
}

at::Tensor& addmm_out(const at::Tensor& add,
                      const at::Tensor& a,
                      const at::Tensor& b,
                      const at::Scalar& beta,
                      const at::Scalar& alpha,
                      at::Tensor& out) {
  if (!takes(a, b) || !takes_sum(add, beta, alpha) || !takes_result(out, a, b))
    return at::cpu::addmm_out(out, add, a, b, beta, alpha);
  if (!add.is_same(out)) out.copy_(add);
  multiply(a, b, out, /*add=*/true);
  return out;
}

at::Tensor& addmm_in_place(at::Tensor& out,
                           const at::Tensor& a,
                           const at::Tensor& b,
                           const at::Scalar& beta,
                           const at::Scalar& alpha) {
  if (!takes(a, b) || !takes_sum(out, beta, alpha) || !takes_result(out, a, b))
    return at::cpu::addmm_(out, a, b, beta, alpha);
  multiply(a, b, out, /*add=*/true);
  return out;
}

// LibTorch warns once per process that a kernel was replaced.
struct NoWarnings : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

void replace_kernels() {
  NoWarnings none;
  const c10::WarningUtils::WarningHandlerGuard guard(&none);
  // Never destroyed: its destructor would remove the kernels.
  static auto* const aten =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  aten->impl("mm", &mm);
  aten->impl("mm.out", &mm_out);
  aten->impl("addmm", &addmm);
  aten->impl("addmm.out", &addmm_out);
  aten->impl("addmm_", &addmm_in_place);
}

}  // namespace

bool use_fast_cpu_products() {
  static const bool faster = [] {
    const bool onednn = onednn_is_faster();
    if (onednn) replace_kernels();
    return onednn;
  }();
  return faster;
}

}  // namespace yoke::ops
