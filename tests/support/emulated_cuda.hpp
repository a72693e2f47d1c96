// Runs the operators of a CUDA device on tensors in CPU memory, for tests on machines without a
// GPU. The threads of an operation run one after the other.
#pragma once

#include <stdexcept>

#include "core/cuda/device_operators.hpp"

namespace yoke::testing {

struct OnCpu {
  static constexpr int kThreads = 5;

  // Meta tensors have no elements to compute with.
  template <template <class> class Operation, class T>
  static void run(const Operation<T>& operation, c10::Device device) {
    if (device.is_meta()) return;
    operation.takes_packs() ? run_threads<kPack<T>>(operation) : run_threads<1>(operation);
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
      operation.finish(row, sum);
    } else {
      for (int t = 0; t < kThreads; ++t) operation.template run<n>(row, t, kThreads);
    }
  }
};

// While it exists, cuda_runtime() returns a runtime whose operators run on the CPU. Its other
// functions throw.
class EmulatedCuda {
 public:
  EmulatedCuda() { replace_cuda_runtime(&runtime_); }
  ~EmulatedCuda() { replace_cuda_runtime(nullptr); }
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

 private:
  class Runtime final : public DeviceOperators<OnCpu> {
    [[noreturn]] static void refuse() { throw std::logic_error("not an operator"); }
    c10::intrusive_ptr<c10d::Backend> connect_nccl(const DeviceGroup&, c10::Device) override {
      refuse();
    }
    void abort(const std::vector<c10d::Backend*>&) override { refuse(); }
    std::unique_ptr<DeviceGraph> make_graph() override { refuse(); }
    void use_deterministic_kernels() override { refuse(); }
    bool multiplies_fp8(c10::Device) override { refuse(); }
    void round_to_fp8(const at::Tensor&, const Fp8Matrix*, const Fp8Matrix*) override { refuse(); }
  };
  Runtime runtime_;
};

}  // namespace yoke::testing
