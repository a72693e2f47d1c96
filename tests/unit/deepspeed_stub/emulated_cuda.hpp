// A CUDA device emulated on the CPU. It has one stream, whose work runs as late as possible, and
// memory that the host cannot access. The threads of a kernel run operations.hpp one after another.
// A missing wait or a host access to device memory therefore makes a test fail, even without a GPU.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "tests/support/mock_host.hpp"

namespace yoke::deepspeed_stub::testing {

// The Platform of the emulated device. YokeHost.stream of a rank points to its EmulatedCuda.
const Platform& emulated_platform();

// The device of one rank. A rank is a thread and constructs its own device. Accessing the device's
// memory without an Access raises SIGSEGV. Memory that was not written yet, or that was freed,
// contains NaN.
class EmulatedCuda {
 public:
  EmulatedCuda();
  // Fails the test if memory was not released, or was written after its release.
  ~EmulatedCuda();
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

  // Makes `host` provide this device, and collectives on its memory that run as late as possible.
  void plug_into(yoke::testing::MockHost& host);
  // Returns the same model with callbacks that run on the stream.
  YokeModel on_device(const YokeModel& model);

  // The constructor runs all work that was issued, or the first `until` pieces of it, counted since
  // the device exists. While an Access exists, the host may access the memory.
  class Access {
   public:
    explicit Access(EmulatedCuda& device, int64_t until = INT64_MAX);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    EmulatedCuda& device_;
  };

  int64_t waits() const { return waits_; }  // number of times that the host waited for the device

 private:
  friend struct EmulatedPlatform;
  friend struct EmulatedServices;

  void* allocate(int64_t bytes);
  void release(void* memory);
  void* allocate_host(int64_t bytes);
  void release_host(void* memory);
  void issue(std::function<void()> work) { work_.push_back(std::move(work)); }
  void finish();
  bool owns(const void* memory) const;

  char* const arena_;
  int64_t used_ = 0;
  std::map<void*, int64_t> sizes_;                  // address -> size, of freed memory too
  std::map<int64_t, std::vector<void*>> released_;  // size -> addresses of free memory
  int64_t live_ = 0, waits_ = 0;
  int accesses_ = 0;
  // Host memory stays allocated until the end, so that late work on released memory is noticed.
  std::map<void*, std::vector<char>> host_memory_, released_host_memory_;
  std::deque<std::function<void()>> work_;
  int64_t done_ = 0;   // pieces of work that were run
  YokeModel model_{};  // the argument of on_device
  YokeHost host_{};    // the host before plug_into changed it
  YokeCollectives behind_{}, collectives_{};
};

}  // namespace yoke::deepspeed_stub::testing
