#include <dlfcn.h>

#include <filesystem>

#include "core/cuda/device_runtime.hpp"
#include "yoke/error.hpp"

namespace fs = std::filesystem;

namespace yoke {
namespace {

// Beside the library or program that this code is in; a program of the build tree has it in ../lib.
fs::path library_path() {
  Dl_info info{};
  const auto* here = reinterpret_cast<const void*>(&has_cuda_library);
  if (::dladdr(here, &info) == 0 || info.dli_fname == nullptr) return {};
  const fs::path folder = fs::absolute(info.dli_fname).parent_path();
  for (const fs::path& place : {folder, folder.parent_path() / "lib"}) {
    if (fs::exists(place / "libyoke_cuda.so")) return place / "libyoke_cuda.so";
  }
  return {};
}

DeviceRuntime& load() {
  const auto refuse = [](const std::string& text) { throw Error(YOKE_FAILED_PRECONDITION, text); };
  const fs::path path = library_path();
  if (path.empty()) refuse("this Yoke was built without CUDA (no libyoke_cuda.so)");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    refuse(std::string("LibTorch's CUDA half cannot be loaded: ") + ::dlerror() +
           "; `pip install torch` (without --no-deps) brings all that it needs");
  const auto entry = reinterpret_cast<CudaEntry>(::dlsym(library, kCudaEntry));
  if (entry == nullptr) refuse(path.string() + " does not belong to this Yoke");
  return *entry();
}

}  // namespace

bool has_cuda_library() {
  return !library_path().empty();
}

DeviceRuntime& cuda_runtime() {
  static DeviceRuntime& runtime = load();
  return runtime;
}

}  // namespace yoke
