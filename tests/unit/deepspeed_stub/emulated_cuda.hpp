// A CUDA device without a card: one stream of work that is done as late as possible, and memory
// that the host cannot touch. Threads of its kernels run one after the other, on operations.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "plugins/deepspeed_stub/kernels/platform.hpp"
#include "tests/support/mock_host.hpp"

namespace yoke::deepspeed_stub::testing {

// What a plugin built with CUDA has; the stream of a rank is an EmulatedCuda.
const Platform& emulated_platform();

// The device of one rank, which is this thread. Reading or writing its memory outside of Access is
// a SIGSEGV; memory that nobody has written, or that was freed, is NaN.
class EmulatedCuda {
 public:
  EmulatedCuda();
  // Fails the test if memory was not released, or was written afterwards.
  ~EmulatedCuda();
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

  // The host has this device, and collectives that work on it: they, too, run as late as they may.
  void plug_into(yoke::testing::MockHost& host);
  // The same model, whose callbacks run on the stream.
  YokeModel on_device(const YokeModel& model);

  // All that was issued is done, and the memory can be touched.
  class Access {
   public:
    explicit Access(EmulatedCuda& device);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    EmulatedCuda& device_;
  };

  int64_t waits() const { return waits_; }  // of the host for the device

 private:
  friend struct EmulatedPlatform;
  friend struct EmulatedServices;

  void* allocate(int64_t bytes);
  void release(void* memory);
  void issue(std::function<void()> work) { work_.push_back(std::move(work)); }
  void finish();
  bool owns(const void* memory) const;

  char* const arena_;
  int64_t used_ = 0;
  std::map<void*, int64_t> sizes_;                  // of what was ever allocated
  std::map<int64_t, std::vector<void*>> released_;  // by size
  int64_t live_ = 0, waits_ = 0;
  int accesses_ = 0;
  std::vector<std::function<void()>> work_;
  YokeModel model_{};  // that runs behind on_device
  YokeHost host_{};    // that plug_into found
  YokeCollectives behind_{}, collectives_{};
};

}  // namespace yoke::deepspeed_stub::testing
