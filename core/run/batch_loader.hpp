// The batches of a run, one after the other. On a device the next one is read, and copied there
// through pinned memory, by another thread while a step runs.
#pragma once

#include <future>
#include <memory>

#include "core/cuda/rank_device.hpp"
#include "core/run/batch.hpp"

namespace yoke {

class BatchLoader {
 public:
  // All that is given outlives this; device NULL = the CPU.
  BatchLoader(const Source& source, const Sampler& part, const Deal& deal, RankDevice* device);

  // The global batch that starts at `sample`, its inputs ready in order on the current stream. It
  // must not be destroyed before the device is done with it. Throws Error as Batch does.
  std::unique_ptr<Batch> take(int64_t sample);

 private:
  struct Ahead;
  std::unique_ptr<Ahead> read_ahead(int64_t sample) const;

  const Source& source_;
  const Sampler& part_;
  const Deal deal_;
  RankDevice* device_;
  int64_t next_ = 0;  // of the one under way
  std::future<std::unique_ptr<Ahead>> ahead_;
};

}  // namespace yoke
