#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "plugins/deepspeed_stub/kernels/platform.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr int64_t kAlignment = 64;

Queue* open(const YokeDevice&, void*) {
  return nullptr;
}

void close(Queue*) noexcept {}

void* allocate(Queue*, int64_t bytes) {
  const int64_t lines = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, static_cast<size_t>(lines * kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(Queue*, void* memory) noexcept {
  std::free(memory);
}

void zero(Queue*, void* memory, int64_t bytes) {
  std::memset(memory, 0, static_cast<size_t>(bytes));
}

void copy(Queue*, const void* from, void* to, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void* allocate_host(Queue* queue, int64_t bytes, bool) {
  return allocate(queue, bytes);
}

void release_host(Queue* queue, void* memory, bool) noexcept {
  release(queue, memory);
}

// All work is done when its call returns, so a mark has nothing to remember.
void* mark(Queue*) {
  return nullptr;
}

void await(Queue*, void*) {}
void drop(Queue*, void*) noexcept {}

}  // namespace

const Platform& cpu_platform() {
  static constexpr Platform platform = {kernels,
                                        open,
                                        close,
                                        allocate,
                                        release,
                                        zero,
                                        copy,
                                        copy,
                                        allocate_host,
                                        release_host,
                                        copy,
                                        copy,
                                        mark,
                                        await,
                                        drop};
  return platform;
}

}  // namespace yoke::deepspeed_stub
