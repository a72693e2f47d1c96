// The two layouts, and their buckets.
//
// Parameters with weight decay are laid out first. In every slice the elements with decay are then
// one range, and an update takes at most two kernels. Buckets are in the order in which a backward
// completes them, on which gradients.cpp relies.
#include "plugins/deepspeed_stub/layout.hpp"

#include <algorithm>

#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub {
namespace {

// Returns the parameters with weight decay, then those without. Within each group they are in the
// order of the model.
std::vector<int64_t> ordered(const ModelSpec& model, bool trainable) {
  std::vector<int64_t> params;
  for (const bool decay : {true, false}) {
    for (size_t p = 0; p < model.params.size(); ++p) {
      const ModelSpec::Param& param = model.params[p];
      if (param.trainable == trainable && param.decay == decay)
        params.push_back(static_cast<int64_t>(p));
    }
  }
  return params;
}

// Distributes parameters to buckets in the order of the layout. length(p) returns the number of
// elements that parameter p takes up in the layout.
template <class Length>
std::vector<Bucket> fill_buckets(const ModelSpec& model,
                                 const std::vector<int64_t>& params,
                                 int64_t elements,
                                 Length length) {
  std::vector<Bucket> buckets;
  int64_t end = 0, filled = 0;
  for (const int64_t p : params) {
    const int64_t numel = model.params[p].numel;
    if (buckets.empty() || filled + numel > elements) {
      buckets.push_back({{}, end, end});
      filled = 0;
    }
    filled += numel;
    end += length(p);
    buckets.back().params.push_back(p);
    buckets.back().end = end;
  }
  return buckets;
}

// A backward runs from the last block to the first. A tied parameter gets its last gradient from
// the first block that uses it, so a bucket is complete after the backward of the lowest block that
// uses any of its parameters.
void sort_by_completion(const ModelSpec& model, std::vector<Bucket>& buckets) {
  const auto completed_by = [&](const Bucket& bucket) {
    int64_t block = static_cast<int64_t>(model.blocks.size());
    for (const int64_t p : bucket.params) block = std::min(block, model.params[p].blocks.front());
    return block;
  };
  std::stable_sort(buckets.begin(), buckets.end(), [&](const Bucket& a, const Bucket& b) {
    return completed_by(a) != completed_by(b) ? completed_by(a) > completed_by(b)
                                              : a.begin > b.begin;
  });
}

}  // namespace

ModelSpec::ModelSpec(const YokeModelSummary& summary) {
  for (uint64_t p = 0; p < summary.num_params; ++p) {
    const YokeParameter& param = *summary.params[p];
    params.push_back(
        {yoke::numel(param.shape, param.ndim), param.trainable != 0, param.decay != 0, {}});
  }
  for (uint64_t b = 0; b < summary.num_blocks; ++b) {
    const YokeBlock& block = *summary.blocks[b];
    blocks.emplace_back(block.params, block.params + block.num_params);
    for (const int64_t p : blocks.back()) params[p].blocks.push_back(static_cast<int64_t>(b));
  }
}

int64_t ModelSpec::block_elements(int64_t block) const {
  int64_t sum = 0;
  for (const int64_t p : blocks[block]) sum += params[p].numel;
  return sum;
}

// ---- FlatLayout ----

FlatLayout::FlatLayout(const ModelSpec& model, bool trainable, int ranks)
    : model_(model),
      params_(ordered(model, trainable)),
      offsets_(model.params.size(), -1),
      ranks_(ranks) {
  for (const int64_t p : params_) {
    offsets_[p] = size_;
    size_ += model.params[p].numel;
    if (model.params[p].decay) decay_end_ = size_;
  }
  // DeepSpeed pads to 2 x ranks as well, so that slices of 2-byte elements are aligned to 4 bytes.
  const int64_t multiple = 2 * int64_t{ranks};
  size_ = (size_ + multiple - 1) / multiple * multiple;
}

Owned FlatLayout::owned(int64_t begin, int64_t end) const {
  Owned owned;
  owned.size = end - begin;
  owned.decay_end = std::clamp<int64_t>(decay_end_ - begin, 0, owned.size);
  for (const int64_t p : params_) {
    const int64_t first = std::max(begin, offsets_[p]);
    const int64_t last = std::min(end, offsets_[p] + model_.params[p].numel);
    if (first < last) owned.pieces.push_back({p, first - offsets_[p], last - first, first - begin});
  }
  return owned;
}

std::vector<Bucket> FlatLayout::buckets(int64_t elements) const {
  auto buckets =
      fill_buckets(model_, params_, elements, [&](int64_t p) { return model_.params[p].numel; });
  if (!buckets.empty()) buckets.back().end = size_;  // the padding is reduced with the last bucket
  sort_by_completion(model_, buckets);
  return buckets;
}

// ---- SliceLayout ----

SliceLayout::SliceLayout(const ModelSpec& model, bool trainable, int ranks)
    : model_(model),
      params_(ordered(model, trainable)),
      offsets_(model.params.size(), -1),
      ranks_(ranks) {
  for (const int64_t p : params_) {
    offsets_[p] = size_;
    size_ += slice(p);
    if (model.params[p].decay) decay_end_ = size_;
  }
}

Owned SliceLayout::owned(int rank) const {
  Owned owned;
  owned.size = size_;
  owned.decay_end = decay_end_;
  for (const int64_t p : params_) {
    // With more ranks than elements, the last ranks keep only padding.
    const int64_t begin = std::min(rank * slice(p), model_.params[p].numel);
    const int64_t end = std::min(begin + slice(p), model_.params[p].numel);
    if (begin < end) owned.pieces.push_back({p, begin, end - begin, offsets_[p]});
  }
  return owned;
}

std::vector<Bucket> SliceLayout::buckets(int64_t elements) const {
  auto buckets = fill_buckets(model_, params_, elements, [&](int64_t p) { return slice(p); });
  sort_by_completion(model_, buckets);
  return buckets;
}

}  // namespace yoke::deepspeed_stub
