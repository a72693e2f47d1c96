#include "plugins/deepspeed_stub/gradients.hpp"

#include <algorithm>
#include <string>

namespace yoke::deepspeed_stub {
namespace {

constexpr size_t kInFlight = 2;  // buckets on their way while the backward fills the next one

}  // namespace

Gradients::Gradients(const Setup& setup, std::vector<Bucket> buckets, bool every_micro)
    : setup_(setup),
      buckets_(std::move(buckets)),
      passing_(buckets_.size()),
      arriving_(buckets_.size()),
      every_micro_(every_micro),
      bucket_of_(setup.spec.params.size(), buckets_.size()),
      fresh_(setup.spec.params.size()),
      awaited_(buckets_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const int64_t p : buckets_[b].params) bucket_of_[p] = b;
  }
}

void Gradients::begin_step(int64_t micros) {
  reductions_.clear();  // of a failed step
  for (Array& array : passing_) array = Array();
  for (Array& array : arriving_) array = Array();
  micros_left_ = micros;
  first_micro_ = true;
}

void Gradients::begin_micro() {
  --micros_left_;
  reducing_ = every_micro_ || micros_left_ == 0;
  if (every_micro_ || first_micro_) fresh_.assign(fresh_.size(), true);
  next_ = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    awaited_[b] = 0;
    for (const int64_t p : buckets_[b].params)
      awaited_[b] += static_cast<int64_t>(setup_.spec.params[p].blocks.size());
  }
}

void Gradients::add(int64_t param, const Span& gradient) {
  const auto known = static_cast<int64_t>(bucket_of_.size());
  if (param < 0 || param >= known || bucket_of_[param] == buckets_.size() ||
      gradient.count != setup_.spec.params[param].numel || gradient.dtype != setup_.param_dtype) {
    throw Error(YOKE_INTERNAL,
                "a gradient of " + std::to_string(gradient.count) + " x " +
                    dtype_name(gradient.dtype) + " for parameter " + std::to_string(param) +
                    ", which is no trainable parameter of that size and dtype");
  }
  const size_t bucket = bucket_of_[param];
  put(bucket, param, gradient, fresh_[param]);
  fresh_[param] = false;
  if (--awaited_[bucket] == 0 && reducing_) start_complete_buckets();
}

void Gradients::start_complete_buckets() {
  for (; next_ < buckets_.size() && awaited_[next_] == 0; ++next_) {
    if (reductions_.size() == kInFlight) finish_oldest();
    reductions_.push_back({next_, start(next_)});
    if (!setup_.settings.overlap_comm) finish_oldest();
  }
}

void Gradients::finish_oldest() {
  Reduction oldest = std::move(reductions_.front());
  reductions_.pop_front();
  oldest.work.wait();
  finish(oldest.bucket);
}

void Gradients::end_micro() {
  if (reducing_ && next_ < buckets_.size()) {
    throw Error(
        YOKE_INTERNAL,
        "the backward ended without all gradients of parameter '" +
            std::string(view(setup_.model.summary->params[buckets_[next_].params.front()]->name)) +
            "' and those reduced with it");
  }
  while (!reductions_.empty()) finish_oldest();
  first_micro_ = false;
}

void Gradients::store(const Span& values, const Span& place, const Rows& rows, bool first) const {
  if (first) {
    setup_.device.copy_rows(values, place, rows);
  } else {
    setup_.device.add_rows(values, place, rows);
  }
}

void Gradients::store(const Span& values, const Span& place, bool first) const {
  store(values, place, one_row(values.count), first);
}

Work Gradients::reduce_scatter(const Span& own, const ConstSpan& all) const {
  const Comm& comm = setup_.comms.reduce;
  if (comm.size() > 1) return comm.reduce_scatter(own, all);
  setup_.device.copy(all, own);
  return {};
}

// ---- FlatGradients

FlatGradients::FlatGradients(const Setup& setup)
    : FlatGradients(setup, FlatLayout(setup.spec, true, setup.comms.reduce.size())) {}

FlatGradients::FlatGradients(const Setup& setup, const FlatLayout& layout)
    : Gradients(
          setup, layout.buckets(setup.settings.reduce_bucket_size), setup.settings.stage == 2),
      layout_(layout),
      range_(own_range(layout, setup)) {
  const int64_t own = range_.end - range_.begin;
  if (setup.settings.stage == 2) {
    memory_ = Array(setup.device, own, setup.gradient_dtype);
    own_ = memory_.span();
  } else {
    memory_ = Array(setup.device, layout.size(), setup.gradient_dtype);
    own_ = memory_.sub(range_.begin, own);
  }
}

// Stages 0 and 1 sum the same slices as stage 2, so that all three agree to the last bit.
Span FlatGradients::norm_part() const {
  if (setup_.settings.stage != 0) return own_;
  return memory_.sub(setup_.comms.reduce.rank() * layout_.slice(), layout_.slice());
}

bool FlatGradients::is_whole(const Bucket& bucket) const {
  return bucket.begin == 0 && bucket.end == layout_.size();
}

Span FlatGradients::bucket_memory(size_t bucket) {
  const Bucket& b = buckets_[bucket];
  if (setup_.settings.stage != 2) return memory_.sub(b.begin, b.end - b.begin);
  if (passing_[bucket].empty())
    passing_[bucket] = Array(setup_.device, b.end - b.begin, setup_.gradient_dtype);
  return passing_[bucket].span();
}

void FlatGradients::put(size_t bucket, int64_t param, const Span& gradient, bool first) {
  const Span place = bucket_memory(bucket).sub(layout_.offset(param) - buckets_[bucket].begin,
                                               setup_.spec.params[param].numel);
  store(gradient, place, first);
}

Work FlatGradients::start(size_t bucket) {
  const Span memory = bucket_memory(bucket);
  const bool scatter =
      setup_.settings.stage > 0 && setup_.settings.reduce_scatter && is_whole(buckets_[bucket]);
  if (!scatter) return setup_.comms.reduce.all_reduce(memory);
  if (setup_.settings.stage == 2 && !first_micro_) {
    arriving_[bucket] = Array::to_be_written(setup_.device, layout_.slice(), setup_.gradient_dtype);
    return reduce_scatter(arriving_[bucket].span(), memory);
  }
  return reduce_scatter(own_, memory);
}

void FlatGradients::finish(size_t bucket) {
  if (setup_.settings.stage != 2) return;
  const Bucket& b = buckets_[bucket];
  const bool scatter = setup_.settings.reduce_scatter && is_whole(b);
  if (scatter) {
    if (!first_micro_) store(arriving_[bucket].span(), own_, false);
  } else if (const int64_t begin = std::max(b.begin, range_.begin),
             end = std::min(b.end, range_.end);
             begin < end) {
    const Span mine = passing_[bucket].sub(begin - b.begin, end - begin);
    const Span place = own_.sub(begin - range_.begin, end - begin);
    store(mine, place, first_micro_);
  }
  passing_[bucket] = Array();
  arriving_[bucket] = Array();
}

// ---- SlicedGradients

SlicedGradients::SlicedGradients(const Setup& setup)
    : SlicedGradients(setup, SliceLayout(setup.spec, true, setup.comms.reduce.size())) {}

SlicedGradients::SlicedGradients(const Setup& setup, const SliceLayout& layout)
    : Gradients(setup, layout.buckets(setup.settings.reduce_bucket_size), true), layout_(layout) {
  memory_ = Array(setup.device, layout.size(), setup.gradient_dtype);
}

void SlicedGradients::put(size_t bucket, int64_t param, const Span& gradient, bool first) {
  const Bucket& b = buckets_[bucket];
  const int64_t all = b.end - b.begin;  // of one rank
  if (passing_[bucket].empty())
    passing_[bucket] =
        Array(setup_.device, setup_.comms.reduce.size() * all, setup_.gradient_dtype);
  const int64_t slice = layout_.slice(param);
  store(gradient.sub(0, slice),
        passing_[bucket].sub(layout_.offset(param) - b.begin, slice),
        {gradient.count, slice, slice, all},
        first);
}

Work SlicedGradients::start(size_t bucket) {
  const Bucket& b = buckets_[bucket];
  if (first_micro_) {
    return reduce_scatter(memory_.sub(b.begin, b.end - b.begin), passing_[bucket].span());
  }
  arriving_[bucket] = Array::to_be_written(setup_.device, b.end - b.begin, setup_.gradient_dtype);
  return reduce_scatter(arriving_[bucket].span(), passing_[bucket].span());
}

void SlicedGradients::finish(size_t bucket) {
  const Bucket& b = buckets_[bucket];
  if (!first_micro_) store(arriving_[bucket].span(), memory_.sub(b.begin, b.end - b.begin), false);
  passing_[bucket] = Array();
  arriving_[bucket] = Array();
}

}  // namespace yoke::deepspeed_stub
