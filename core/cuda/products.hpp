// Matrix products on a CUDA device. Part of libyoke_cuda.so.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <cublasLt.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace yoke {

// The products of one process. Thread-safe.
class Products {
 public:
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Implements DeviceRuntime::multiply(). Throws std::exception if cuBLASLt has no algorithm.
  void multiply(const at::Tensor& out,
                const at::Tensor& a,
                const at::Tensor& b,
                const at::Tensor& add);

  // Decides whether the fastest of several algorithms for a shape is found by trying them, at its
  // first product, or cuBLASLt's first proposal is used, as by default. Measurements differ from
  // run to run, and algorithms in the last bits of their results.
  void measure(bool measures) { measures_ = measures; }

 private:
  struct Shape;
  struct Operands;
  struct Plan;
  struct Place;
  struct Workspace {
    c10::DataPtr memory;
    size_t bytes = 0;
  };

  Place place(c10::DeviceIndex device);
  static void choose(Plan& plan, const Place& place, Operands operands, const at::Tensor& out);

  std::atomic<bool> measures_{false};
  std::mutex mutex_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::map<c10::DeviceIndex, cublasLtHandle_t> handles_;
  std::map<std::pair<c10::DeviceIndex, cudaStream_t>, Workspace> workspaces_;
};

}  // namespace yoke
