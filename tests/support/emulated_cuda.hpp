// Runs the operators of a CUDA device on tensors in CPU memory, for tests on machines without a
// GPU. The threads of an operation run one after the other.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/util/Type.h>

#include <map>
#include <stdexcept>
#include <string>
#include <typeinfo>

#include "core/cuda/column_major.hpp"
#include "core/cuda/device_operators.hpp"

namespace yoke::testing {

struct OnCpu {
  static constexpr int kThreads = 5;
  // Counts the operations of this thread by name, if it is not NULL.
  static inline thread_local std::map<std::string, int>* launches = nullptr;

  template <class Operation>
  static void run(const Operation& operation, c10::Device device) {
    count(c10::demangle(typeid(operation).name()));
    if (device.is_meta()) return;  // there are no elements to compute with
    operation.takes_packs() ? run_threads<Operation::kWidth>(operation) : run_threads<1>(operation);
  }
  static void count(const std::string& name) {
    if (launches != nullptr) ++(*launches)[name];
  }

 private:
  template <int n, class Operation>
  static void run_threads(const Operation& operation) {
    if constexpr (requires { operation.count; }) {
      for (int64_t i = 0; i < operation.count; i += n) operation.template run<n>(i);
    } else {
      for (int64_t row = 0; row < operation.rows; ++row) run_row<n>(operation, row);
    }
  }
  template <int n, class Operation>
  static void run_row(const Operation& operation, int64_t row) {
    if constexpr (requires { operation.template part<n>(row, 0, 1); }) {
      // The last threads may have no share. Their sums are merged first, as on a device.
      auto sum = operation.template part<n>(row, kThreads - 1, kThreads);
      for (int t = kThreads - 2; t >= 0; --t)
        sum = operation.template part<n>(row, t, kThreads).merged(sum);
      if constexpr (requires { operation.finish(row, sum); }) {
        operation.finish(row, sum);
      } else {
        for (int t = 0; t < kThreads; ++t) operation.template finish<n>(row, sum, t, kThreads);
      }
    } else {
      for (int t = 0; t < kThreads; ++t) operation.template run<n>(row, t, kThreads);
    }
  }
};

// A runtime whose operators run on the CPU. Its other functions throw.
class EmulatedRuntime : public DeviceOperators<OnCpu> {
  void multiply(const at::Tensor& out,
                const at::Tensor& a,
                const at::Tensor& b,
                const at::Tensor& add) override {
    OnCpu::count("multiply");
    const at::RecordFunctionGuard hidden(/*is_enabled=*/false);
    const ColumnMajorProduct p = column_major_product(out, a, b, add);
    const at::ScalarType wide = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor product = at::mm(operand(b, p.first).to(wide), operand(a, p.second).to(wide));
    operand(out, p.out).copy_(add.defined() ? product + operand(add, p.add) : product);
  }
  // Returns what a library sees that only knows the address and the layout.
  static at::Tensor operand(const at::Tensor& t, const ColumnMajor& m) {
    const at::Tensor seen = t.as_strided({m.rows, m.columns}, {1, m.stride});
    return m.transposed ? seen.t() : seen;
  }
  [[noreturn]] static void refuse() { throw std::logic_error("not an operator"); }
  c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup&, c10::Device) override {
    refuse();
  }
  void abort(const std::vector<c10d::Backend*>&) override { refuse(); }
  std::unique_ptr<DeviceGraph> make_graph() override { refuse(); }
  void use_deterministic_kernels() override { refuse(); }
  void measure_products(bool) override { refuse(); }
  bool multiplies_fp8(c10::Device) override { refuse(); }
  void round_to_fp8(const at::Tensor&, const Fp8Matrix*, const Fp8Matrix*) override { refuse(); }
};

// While it exists, cuda_runtime() returns an EmulatedRuntime. everywhere: ops:: uses its operators
// for all tensors on the CPU; otherwise only the functions of ops::device do.
class EmulatedCuda {
 public:
  explicit EmulatedCuda(bool everywhere = false) { replace_cuda_runtime(&runtime_, everywhere); }
  ~EmulatedCuda() { replace_cuda_runtime(nullptr); }
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

 private:
  EmulatedRuntime runtime_;
};

}  // namespace yoke::testing
