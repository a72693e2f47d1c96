// A kind of device as tables: its memory and its kernels. Functions that fail throw Error or
// std::bad_alloc.
#pragma once

#include "plugins/deepspeed_stub/kernels/kernels.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

struct Platform {
  const Kernels& (*kernels)();
  // stream: the one of the rank (YokeHost.stream), to which all work goes.
  Queue* (*open)(const YokeDevice& device, void* stream);
  void (*close)(Queue*) noexcept;
  void* (*allocate)(Queue*, int64_t bytes);  // aligned to 64 bytes
  // May still be in use by work that was issued before.
  void (*release)(Queue*, void* memory) noexcept;
  void (*zero)(Queue*, void* memory, int64_t bytes);
  // To and from memory of the host; these two wait.
  void (*upload)(Queue*, const void* host, void* memory, int64_t bytes);
  void (*download)(Queue*, const void* memory, void* host, int64_t bytes);
};

const Platform& cpu_platform();
// NULL if this plugin was built without CUDA. Needs no driver.
const Platform* cuda_platform();

}  // namespace yoke::deepspeed_stub
