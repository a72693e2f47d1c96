// The data loader, which reads the batches of a run in order.
#pragma once

#include <c10/core/thread_pool.h>

#include <future>
#include <memory>
#include <optional>

#include "core/cuda/rank_device.hpp"
#include "core/run/batch.hpp"

namespace yoke {

// On a device, a separate thread reads the next batch and copies it to the device while a step
// runs. On the CPU a batch is read when it is requested. May be used by one thread only.
class BatchLoader {
 public:
  // Everything passed by reference or pointer must outlive this object. device: NULL = the CPU.
  BatchLoader(const SampleSource& source,
              const SampleOrder& part,
              const SampleAssignment& assignment,
              RankDevice* device);

  // Returns the global batch that starts at sample `start`. On a device, work that is queued on the
  // current stream afterwards runs only when the inputs of the batch have been copied. The caller
  // must keep the batch until the device has finished with it. Throws the errors of Batch's
  // constructor.
  std::unique_ptr<Batch> load(int64_t start);

 private:
  struct Prefetched;
  std::unique_ptr<Prefetched> prefetch(int64_t start) const;

  const SampleSource& source_;
  const SampleOrder& part_;
  const SampleAssignment assignment_;
  RankDevice* device_;
  int64_t next_start_ = 0;  // first sample of the batch in next_
  std::future<std::unique_ptr<Prefetched>> next_;
  std::optional<c10::ThreadPool> reader_;  // one thread; empty on the CPU
};

}  // namespace yoke
