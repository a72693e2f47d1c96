#include "core/launch/nvidia_driver.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// Declarations of the driver functions that are called here. Their binary interface is stable.
constexpr int kSuccess = 0, kNoDevice = 100;
using Init = int (*)(unsigned flags);
using GetCount = int (*)(int* count);
using GetName = int (*)(char* name, int length, int device);

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(::dlsym(library, name));
}

std::string visible_text() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? "" : std::string(" (CUDA_VISIBLE_DEVICES = '") + value + "')";
}

NvidiaDriver ask() {
  NvidiaDriver answer;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    answer.problem = "no NVIDIA driver is installed (libcuda.so.1 is not found)";
    return answer;
  }
  const auto init = symbol<Init>(library, "cuInit");
  const auto get_count = symbol<GetCount>(library, "cuDeviceGetCount");
  const auto get_name = symbol<GetName>(library, "cuDeviceGetName");
  if (init == nullptr || get_count == nullptr || get_name == nullptr) {
    answer.problem = "libcuda.so.1 is not the library of an NVIDIA driver";
    return answer;
  }
  int code = init(0);
  if (code == kSuccess) code = get_count(&answer.devices);
  if (code != kSuccess && code != kNoDevice) {
    answer.problem = concat("cuInit of the NVIDIA driver fails with error ", code);
  } else if (answer.devices == 0) {
    answer.problem = "the NVIDIA driver reports no device for this process" + visible_text();
  } else {
    std::array<char, 128> name{};
    if (get_name(name.data(), name.size(), 0) == kSuccess) answer.name = name.data();
  }
  return answer;
}

}  // namespace

const NvidiaDriver& nvidia_driver() {
  static const NvidiaDriver answer = ask();
  return answer;
}

}  // namespace yoke
