#include <dlfcn.h>

#include <filesystem>

#include "core/cuda/device_runtime.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace fs = std::filesystem;

namespace yoke {
namespace {

// Finds libyoke_cuda.so in the folder of the library or program that contains this code, or in its
// sibling folder ../lib, as in the build tree. Returns an empty path if there is none.
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
  if (path.empty()) refuse("this Yoke was built without CUDA: libyoke_cuda.so is missing");
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    refuse(concat("LibTorch's CUDA half cannot be loaded: ",
                  ::dlerror(),
                  "; `pip install torch`, without --no-deps, installs all that it needs"));
  const auto entry = reinterpret_cast<CudaEntry>(::dlsym(library, kCudaEntry));
  if (entry == nullptr) refuse(path.string() + " is of another version of Yoke; reinstall Yoke");
  return *entry();
}

DeviceRuntime* replacement = nullptr;
bool emulating = false;

}  // namespace

bool has_cuda_library() {
  return !library_path().empty();
}

DeviceRuntime& cuda_runtime() {
  if (replacement != nullptr) return *replacement;
  static DeviceRuntime& runtime = load();
  return runtime;
}

void replace_cuda_runtime(DeviceRuntime* runtime, bool emulates) {
  replacement = runtime;
  emulating = emulates;
}

bool runs_on(c10::Device device) {
  return device.is_cuda() || (emulating && (device.is_cpu() || device.is_meta()));
}

bool runs_on(const YokeDevice& device) {
  return runs_on(device.type == YOKE_DEVICE_CUDA ? c10::DeviceType::CUDA : c10::DeviceType::CPU);
}

}  // namespace yoke
