// How Megatron's DistributedDataParallel lays out a model: one buffer for the parameters and one
// for their gradients, cut into buckets, and each bucket into one shard per rank. Only computes
// sizes and offsets, which count elements; nothing here holds values or communicates.
#pragma once

#include <cstdint>
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
};

// Returns the rules for a model. data_ranks: all of them, those of other instances included.
BucketRules bucket_rules(const YokeModelSummary& model,
                         const Settings& settings,
                         int shards,
                         int data_ranks);

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
