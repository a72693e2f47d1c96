// Reads and copies the next batch while the current step runs.
//
// After every load() a thread reads the batch that a run normally needs next. It copies on its own
// stream and records an event; load() makes the current stream wait for that event, so the host
// never waits for a copy. Any other batch, such as the first of a run, is read by load() itself.
// One batch in advance is enough, because a step takes longer than reading its samples from mapped
// memory. On the CPU nothing is read in advance, because the thread would take a core from the
// step.
#include "core/run/batch_loader.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace yoke {

// A batch, and an event that is recorded after its copies.
struct BatchLoader::Prefetched {
  std::unique_ptr<Batch> batch;
  c10::Event copied{c10::DeviceType::CUDA};
};

BatchLoader::BatchLoader(const SampleSource& source,
                         const SampleOrder& part,
                         const SampleAssignment& assignment,
                         RankDevice* device)
    : source_(source), part_(part), assignment_(assignment), device_(device) {
  if (device_ != nullptr) reader_.emplace(/*pool_size=*/1);
}

std::unique_ptr<BatchLoader::Prefetched> BatchLoader::prefetch(int64_t start) const {
  const c10::StreamGuard guard(device_->copies());
  auto prefetched = std::make_unique<Prefetched>();
  prefetched->batch =
      std::make_unique<Batch>(source_, part_, start, assignment_, device_->device());
  prefetched->copied.record(device_->copies());
  return prefetched;
}

std::unique_ptr<Batch> BatchLoader::load(int64_t start) {
  if (device_ == nullptr) return std::make_unique<Batch>(source_, part_, start, assignment_);
  const bool ready = next_.valid() && next_start_ == start;
  const std::unique_ptr<Prefetched> current = ready ? next_.get() : prefetch(start);
  const c10::impl::VirtualGuardImpl impl(c10::DeviceType::CUDA);
  current->copied.block(impl.getStream(device_->device()));
  next_start_ = start + assignment_.global_batch();
  const auto task = std::make_shared<std::packaged_task<std::unique_ptr<Prefetched>()>>(
      [this, from = next_start_] { return prefetch(from); });
  next_ = task->get_future();
  reader_->run([task] { (*task)(); });
  return std::move(current->batch);
}

}  // namespace yoke
