// A kind of device, described by two tables of functions: one for its memory, one for its kernels.
#pragma once

#include "plugins/deepspeed_stub/kernels/kernels.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

// Functions that are not noexcept throw Error or std::bad_alloc when they fail. A queue may be used
// by one thread at a time. Sizes are bytes.
struct Platform {
  const Kernels& (*kernels)();
  // Opens a queue that issues all work to `stream`, which is YokeHost.stream of the rank.
  Queue* (*open)(const YokeDevice& device, void* stream);
  void (*close)(Queue*) noexcept;
  void* (*allocate)(Queue*, int64_t bytes);  // aligned to 64 bytes
  // Frees memory that work issued earlier may still use.
  void (*release)(Queue*, void* memory) noexcept;
  void (*zero)(Queue*, void* memory, int64_t bytes);
  // Copy from and to host memory. Both wait until the copy is done.
  void (*upload)(Queue*, const void* host, void* memory, int64_t bytes);
  void (*download)(Queue*, const void* memory, void* host, int64_t bytes);

  // Host memory, aligned to 64 bytes. pinned: page-locked, so that copies from and to it can run
  // while the host computes.
  void* (*allocate_host)(Queue*, int64_t bytes, bool pinned);
  void (*release_host)(Queue*, void* memory, bool pinned) noexcept;
  // Issue a copy from and to host memory, which must stay untouched until the copy is done.
  void (*issue_upload)(Queue*, const void* host, void* memory, int64_t bytes);
  void (*issue_download)(Queue*, const void* memory, void* host, int64_t bytes);
  // Returns a mark behind all work that was issued so far. await waits until that work is done, and
  // frees the mark; drop only frees it.
  void* (*mark)(Queue*);
  void (*await)(Queue*, void* mark);
  void (*drop)(Queue*, void* mark) noexcept;
};

const Platform& cpu_platform();
// Returns NULL if this plugin was built without CUDA. Works without a driver.
const Platform* cuda_platform();

}  // namespace yoke::deepspeed_stub
