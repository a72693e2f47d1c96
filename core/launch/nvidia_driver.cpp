#include "core/launch/nvidia_driver.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// Declarations of the driver functions that are called here. Their binary interface is stable.
constexpr int kSuccess = 0, kNoDevice = 100, kNotReady = 802, kMismatch = 803;
using Init = int (*)(unsigned flags);
using GetVersion = int (*)(int* version);
using GetErrorText = int (*)(int code, const char** text);
using GetCount = int (*)(int* count);
using GetName = int (*)(char* name, int length, int device);

// LibTorch's CUDA half and Yoke's kernels are built with this version of CUDA. Drivers run programs
// of their own major version and of older ones.
constexpr int kCudaMajor = 13;
constexpr const char* kDriverOfCuda = "driver 580 or newer";

constexpr const char* kOtherDevice = "use device=cpu, or run on a machine with an NVIDIA GPU";

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(::dlsym(library, name));
}

std::string visible_text() {
  const char* value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? "" : std::string(" (CUDA_VISIBLE_DEVICES = '") + value + "')";
}

NvidiaDriver no_device(const std::string& problem) {
  return {.problem = problem, .fix = kOtherDevice};
}

NvidiaDriver faulty(const std::string& problem, const std::string& fix) {
  return {.problem = problem, .fix = fix, .is_faulty = true};
}

NvidiaDriver failed_start(void* library, int code) {
  const char* text = nullptr;
  if (const auto get_text = symbol<GetErrorText>(library, "cuGetErrorString"))
    get_text(code, &text);
  const bool mismatch = code == kMismatch;
  return faulty(
      concat("the NVIDIA driver cannot be started: cuInit fails with error ", code) +
          (text == nullptr ? "" : std::string(" (") + text + ")") +
          (mismatch ? ", because its kernel module is of another version than libcuda.so.1" : ""),
      mismatch            ? "reboot the machine"
      : code == kNotReady ? "start the service nvidia-fabricmanager"
                          : "check the driver with nvidia-smi");
}

NvidiaDriver ask() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return no_device("no NVIDIA driver is installed (libcuda.so.1 is not found)");
  const auto init = symbol<Init>(library, "cuInit");
  const auto get_version = symbol<GetVersion>(library, "cuDriverGetVersion");
  const auto get_count = symbol<GetCount>(library, "cuDeviceGetCount");
  const auto get_name = symbol<GetName>(library, "cuDeviceGetName");
  if (init == nullptr || get_version == nullptr || get_count == nullptr || get_name == nullptr)
    return no_device("libcuda.so.1 is not the library of an NVIDIA driver");
  NvidiaDriver answer;
  int code = init(0);
  if (code == kSuccess) code = get_count(&answer.devices);
  if (code != kSuccess && code != kNoDevice) return failed_start(library, code);
  if (answer.devices == 0)
    return no_device("the NVIDIA driver reports no device for this process" + visible_text());
  int version = 0;  // 12040 for CUDA 12.4
  if (get_version(&version) == kSuccess && version / 1000 < kCudaMajor) {
    return faulty(concat("the NVIDIA driver is too old: it runs programs of CUDA up to ",
                         version / 1000,
                         ".",
                         version % 1000 / 10,
                         ", and Yoke is one of CUDA ",
                         kCudaMajor),
                  std::string("install ") + kDriverOfCuda);
  }
  for (int32_t device = 0; device < answer.devices; ++device) {
    std::array<char, 128> name{};
    const bool known = get_name(name.data(), name.size(), device) == kSuccess;
    answer.names.emplace_back(known ? name.data() : "unknown");
  }
  return answer;
}

}  // namespace

const NvidiaDriver& nvidia_driver() {
  static const NvidiaDriver answer = ask();
  return answer;
}

std::string device_name(int32_t index) {
  return concat("cuda:", index, ", ", nvidia_driver().names.at(static_cast<size_t>(index))) +
         visible_text();
}

}  // namespace yoke
