// Collecting and reducing gradients.
//
// A backward visits the blocks in reverse order, so it completes the buckets in an order that is
// known in advance; layout.cpp sorts them accordingly. Buckets are reduced strictly in this order,
// even if the model's gradients complete a later bucket first, because all ranks must issue the
// same collectives in the same order.
//
// When to reduce depends on the stage. Stages 0 and 1 keep all gradients of the step, so they
// accumulate locally and reduce once, in the last micro-batch. Stages 2 and 3 have no memory for
// that: they reduce after every micro-batch and accumulate the reduced slices. The price is one
// reduction per micro-batch, as in DeepSpeed.
#include "plugins/deepspeed_stub/gradients.hpp"

#include <algorithm>

#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

constexpr size_t kInFlight = 2;  // reductions in flight while the backward fills the next bucket

}  // namespace

Gradients::Gradients(const Setup& setup, std::vector<Bucket> buckets, bool every_micro)
    : setup_(setup),
      buckets_(std::move(buckets)),
      buffers_(buckets_.size()),
      every_micro_(every_micro),
      received_(buckets_.size()),
      bucket_of_(setup.spec.params.size(), buckets_.size()),
      fresh_(setup.spec.params.size()),
      missing_(buckets_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const int64_t p : buckets_[b].params) bucket_of_[p] = b;
  }
}

void Gradients::begin_step(int64_t micros) {
  // If the last step failed, its reductions may still write to the arrays. Destroying a reduction
  // waits for it.
  reductions_.clear();
  for (Array& array : buffers_) array = Array();
  for (Array& array : received_) array = Array();
  micros_left_ = micros;
  first_micro_ = true;
}

void Gradients::begin_micro() {
  --micros_left_;
  reducing_ = every_micro_ || micros_left_ == 0;
  // The first gradient of a fresh parameter overwrites the bucket's memory, so buckets need not be
  // zeroed.
  if (every_micro_ || first_micro_) fresh_.assign(fresh_.size(), true);
  next_ = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    missing_[b] = 0;
    for (const int64_t p : buckets_[b].params)
      missing_[b] += static_cast<int64_t>(setup_.spec.params[p].blocks.size());
  }
}

void Gradients::add(int64_t param, const Span& gradient) {
  const auto known = static_cast<int64_t>(bucket_of_.size());
  if (param < 0 || param >= known || bucket_of_[param] == buckets_.size() ||
      gradient.count != setup_.spec.params[param].numel || gradient.dtype != setup_.param_dtype) {
    throw Error(YOKE_INTERNAL,
                concat("the model reported a gradient of ",
                       gradient.count,
                       " x ",
                       dtype_name(gradient.dtype),
                       " for parameter ",
                       param,
                       ", which is not a trainable parameter of that size and dtype"));
  }
  const size_t bucket = bucket_of_[param];
  put(bucket, param, gradient, fresh_[param]);
  fresh_[param] = false;
  if (--missing_[bucket] == 0 && reducing_) start_complete_buckets();
}

void Gradients::start_complete_buckets() {
  for (; next_ < buckets_.size() && missing_[next_] == 0; ++next_) {
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
  buffers_[oldest.bucket] = Array();
  received_[oldest.bucket] = Array();
}

void Gradients::end_micro() {
  if (reducing_ && next_ < buckets_.size()) {
    throw Error(YOKE_INTERNAL,
                concat("the backward ended, but gradients are missing for parameter '",
                       view(setup_.model.summary->params[buckets_[next_].params.front()]->name),
                       "' or one of those that are reduced with it"));
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

void Gradients::accumulate(const Span& reduced, const Span& place) const {
  store(reduced, place, first_micro_);
}

Span Gradients::receive_at(size_t bucket, const Span& place) {
  if (first_micro_) return place;
  received_[bucket] = Array::to_be_written(setup_.device, place.count, place.dtype);
  return received_[bucket].span();
}

void Gradients::accumulate_received(size_t bucket, const Span& place) {
  if (!first_micro_) store(received_[bucket].span(), place, false);
}

Work Gradients::reduce_scatter(const Span& own, const ConstSpan& all) const {
  const Comm& comm = setup_.comms.reduce;
  if (comm.size() > 1) return comm.reduce_scatter(own, all);
  setup_.device.copy(all, own);
  return {};
}

// ---- FlatGradients ----

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

// At stage 0 every rank has all gradients. It still contributes only one slice to the norm, as at
// stages 1 and 2: the order of the sum is then the same, and the norm is bit-equal at all three.
Span FlatGradients::norm_part() const {
  if (setup_.settings.stage != 0) return own_;
  return memory_.sub(setup_.comms.reduce.rank() * layout_.slice(), layout_.slice());
}

// A reduce-scatter gives each rank an equal part of the bucket, which is the rank's slice only if
// the bucket is the whole flat buffer. Smaller buckets are summed by all-reduce, and each rank
// keeps the part that overlaps its slice.
bool FlatGradients::is_scattered(const Bucket& bucket) const {
  const bool is_whole = bucket.begin == 0 && bucket.end == layout_.size();
  return setup_.settings.stage > 0 && setup_.settings.reduce_scatter && is_whole;
}

Span FlatGradients::bucket_memory(size_t bucket) {
  const Bucket& b = buckets_[bucket];
  if (setup_.settings.stage != 2) return memory_.sub(b.begin, b.end - b.begin);
  if (buffers_[bucket].empty())
    buffers_[bucket] = Array(setup_.device, b.end - b.begin, setup_.gradient_dtype);
  return buffers_[bucket].span();
}

void FlatGradients::put(size_t bucket, int64_t param, const Span& gradient, bool first) {
  const Span place = bucket_memory(bucket).sub(layout_.offset(param) - buckets_[bucket].begin,
                                               setup_.spec.params[param].numel);
  store(gradient, place, first);
}

Work FlatGradients::start(size_t bucket) {
  const Span memory = bucket_memory(bucket);
  if (!is_scattered(buckets_[bucket])) return setup_.comms.reduce.all_reduce(memory);
  return reduce_scatter(setup_.settings.stage == 2 ? receive_at(bucket, own_) : own_, memory);
}

void FlatGradients::finish(size_t bucket) {
  if (setup_.settings.stage != 2) return;
  const Bucket& b = buckets_[bucket];
  if (is_scattered(b)) return accumulate_received(bucket, own_);
  // After an all-reduce, this rank keeps the part of the bucket that overlaps its slice.
  const int64_t begin = std::max(b.begin, range_.begin), end = std::min(b.end, range_.end);
  if (begin >= end) return;
  accumulate(buffers_[bucket].sub(begin - b.begin, end - begin),
             own_.sub(begin - range_.begin, end - begin));
}

// ---- SlicedGradients ----

SlicedGradients::SlicedGradients(const Setup& setup)
    : SlicedGradients(setup, SliceLayout(setup.spec, true, setup.comms.reduce.size())) {}

SlicedGradients::SlicedGradients(const Setup& setup, const SliceLayout& layout)
    : Gradients(setup, layout.buckets(setup.settings.reduce_bucket_size), true), layout_(layout) {
  memory_ = Array(setup.device, layout.size(), setup.gradient_dtype);
}

void SlicedGradients::put(size_t bucket, int64_t param, const Span& gradient, bool first) {
  const Bucket& b = buckets_[bucket];
  const int64_t all = b.end - b.begin;  // elements of one rank's slices in this bucket
  if (buffers_[bucket].empty())
    buffers_[bucket] =
        Array(setup_.device, setup_.comms.reduce.size() * all, setup_.gradient_dtype);
  // The buffer of a bucket contains the slices for rank 0, then those for rank 1, and so on, as
  // reduce-scatter requires. A gradient is therefore cut into rows, one per rank.
  const int64_t slice = layout_.slice(param);
  store(gradient.sub(0, slice),
        buffers_[bucket].sub(layout_.offset(param) - b.begin, slice),
        {gradient.count, slice, slice, all},
        first);
}

Span SlicedGradients::bucket_slices(size_t bucket) const {
  const Bucket& b = buckets_[bucket];
  return memory_.sub(b.begin, b.end - b.begin);
}

Work SlicedGradients::start(size_t bucket) {
  return reduce_scatter(receive_at(bucket, bucket_slices(bucket)), buffers_[bucket].span());
}

void SlicedGradients::finish(size_t bucket) {
  accumulate_received(bucket, bucket_slices(bucket));
}

}  // namespace yoke::deepspeed_stub
