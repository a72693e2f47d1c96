// Is there a GPU to test on?
#pragma once

#include <dlfcn.h>

#include <string>

namespace yoke::testing {

// Devices that the driver sees; why there are none, if there are none.
struct Gpus {
  int count = 0;
  std::string missing;

  Gpus() {
    void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays: it has threads
    if (driver == nullptr) {
      missing = "no NVIDIA driver (libcuda.so.1)";
      return;
    }
    const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
    const auto get_count = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
    const bool usable =
        init != nullptr && get_count != nullptr && init(0) == 0 && get_count(&count) == 0;
    if (!usable) missing = "the NVIDIA driver cannot be used (cuInit)";
    if (usable && count == 0) missing = "the NVIDIA driver sees no device";
  }
};

}  // namespace yoke::testing

// First line of a test that needs one.
#define YOKE_REQUIRE_GPU() \
  if (const yoke::testing::Gpus gpus; gpus.count == 0) GTEST_SKIP() << gpus.missing
