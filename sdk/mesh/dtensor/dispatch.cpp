#include "sdk/mesh/dtensor/dispatch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <list>
#include <mutex>

#include "sdk/mesh/dtensor/attention.hpp"
#include "sdk/mesh/dtensor/boxed.hpp"
#include "sdk/mesh/dtensor/cross_entropy.hpp"
#include "sdk/mesh/dtensor/hot_operators.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {

void register_dtensor() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kDTensorKey)) {
      throw Error(YOKE_FAILED_PRECONDITION,
                  "another library in this process already handles LibTorch's dispatch key Fake; "
                  "there can be only one DTensor implementation per process");
    }
    // The destructor of a torch::Library unregisters its kernels, so these objects live as long as
    // the process.
    static torch::Library fallback(
        torch::Library::IMPL, "_", kDTensorKey, __FILE__, static_cast<uint32_t>(__LINE__));
    fallback.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
    static torch::Library aten(
        torch::Library::IMPL, "aten", kDTensorKey, __FILE__, static_cast<uint32_t>(__LINE__));
    register_hot_operators(aten);
    for (const c10::DispatchKey key :
         {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      static std::list<torch::Library> autograd;
      autograd.emplace_back(
          torch::Library::IMPL, "aten", key, __FILE__, static_cast<uint32_t>(__LINE__));
      register_attention(autograd.back());
      register_cross_entropy(autograd.back());
    }
  });
}

}  // namespace yoke::mesh
