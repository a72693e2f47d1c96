#include "core/run/batch_loader.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace yoke {

// A batch, and when its copies are done.
struct BatchLoader::Ahead {
  std::unique_ptr<Batch> batch;
  c10::Event copied{c10::DeviceType::CUDA};
};

BatchLoader::BatchLoader(const Source& source,
                     const Sampler& part,
                     const Deal& deal,
                     RankDevice* device)
    : source_(source), part_(part), deal_(deal), device_(device) {}

std::unique_ptr<BatchLoader::Ahead> BatchLoader::read_ahead(int64_t sample) const {
  const c10::StreamGuard guard(device_->copies());
  auto ahead = std::make_unique<Ahead>();
  ahead->batch = std::make_unique<Batch>(source_, part_, sample, deal_, device_->device());
  ahead->copied.record(device_->copies());
  return ahead;
}

std::unique_ptr<Batch> BatchLoader::take(int64_t sample) {
  if (device_ == nullptr) return std::make_unique<Batch>(source_, part_, sample, deal_);
  const bool expected = ahead_.valid() && next_ == sample;
  const std::unique_ptr<Ahead> ahead = expected ? ahead_.get() : read_ahead(sample);
  const c10::impl::VirtualGuardImpl impl(c10::DeviceType::CUDA);
  ahead->copied.block(impl.getStream(device_->device()));
  next_ = sample + deal_.global_batch();
  ahead_ = std::async(std::launch::async, [this, from = next_] { return read_ahead(from); });
  return std::move(ahead->batch);
}

}  // namespace yoke
