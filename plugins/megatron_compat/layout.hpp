// How Megatron's DistributedDataParallel lays out a model: one buffer for the parameters and one
// for their gradients, cut into buckets, and each bucket into one shard per rank. Only computes
// sizes and offsets, which count elements; nothing here holds values or communicates.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "plugins/megatron_compat/settings.hpp"
#include "sdk/compat/flat_layout.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::megatron_compat {

// Returns the trainable parameters of a model in the order in which Megatron registers them.
std::vector<compat::Slot> megatron_slots(const YokeModelSummary& model);

// A contiguous part of the buffer whose gradients are reduced together.
struct Bucket {
  int64_t begin = 0;  // first element
  int64_t size = 0;   // elements, padding included
  int64_t used = 0;   // elements up to the end of the last parameter
};

// What decides the sizes of buckets.
struct BucketRules {
  int64_t bucket_size = 0;     // a bucket is full with this many elements; 0 = one bucket
  bool distributed = false;    // whether buckets are cut into shards, and therefore padded
  bool pad_for_busbw = false;  // whether buckets are padded to multiples of 2^16 as well
  int shards = 1;              // ranks that share a bucket; they decide the padding
  // The end of each pipeline stage of this rank, as an index into the blocks; empty = one stage.
  // Each stage has buckets of its own, and those behind the first one have a single bucket.
  std::vector<uint64_t> stage_ends = {};
  // Returns whether another pipeline rank has a parameter, too. It then has a bucket of its own, so
  // that both ranks cut it into the same shards.
  std::function<bool(int64_t param)> is_shared = [](int64_t) { return false; };
};

// Returns the rules for the part of a model that a rank has, without those about stages. copies:
// ranks that have the same part; first_stage: whether it is that of the first pipeline rank.
BucketRules bucket_rules(const YokeModelSummary& model,
                         const Settings& settings,
                         int shards,
                         int copies,
                         bool first_stage);

class Layout : public compat::FlatLayout {
 public:
  // The model must outlive the layout.
  static Layout of(const YokeModelSummary& model, const BucketRules& rules);

  // Returns the buckets in the order of the buffer.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // Returns the elements of a bucket that a rank owns: the shard with this number.
  Bucket shard(int64_t bucket, int rank) const;
  // Returns the shards of a rank, one for each bucket.
  std::vector<compat::Range> shards(int rank) const;

 private:
  Layout(FlatLayout flat, std::vector<Bucket> buckets, int shards)
      : FlatLayout(std::move(flat)), buckets_(std::move(buckets)), shards_(shards) {}

  std::vector<Bucket> buckets_;
  int shards_;
};

}  // namespace yoke::megatron_compat
