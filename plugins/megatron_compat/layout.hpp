// How Megatron's DistributedDataParallel lays out a model: one buffer for the parameters and one
// for their gradients, cut into buckets, and each bucket into one shard per rank. Only computes
// sizes and offsets, which count elements; nothing here holds values or communicates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/megatron_compat/settings.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::megatron_compat {

// A parameter of Megatron: one parameter of the model, or several that Megatron stores as one, such
// as the projections to queries, keys and values. Parts follow each other without a gap.
struct Slot {
  std::string name;             // name of the parameter in Megatron
  std::vector<int64_t> params;  // indices into the summary, in the order of the buffer
  int64_t begin = 0, end = 0;   // elements of the buffer
  int64_t bucket = 0;           // index of its bucket
};

// Returns the trainable parameters of a model in the order in which Megatron registers them. Slots
// have no place in a buffer yet. A parameter whose name Megatron does not know is a slot by itself.
std::vector<Slot> megatron_slots(const YokeModelSummary& model);

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

// A contiguous part of a parameter that lies in a shard.
struct Piece {
  int64_t param;   // index into the summary
  int64_t begin;   // first element within the parameter
  int64_t count;   // number of elements
  int64_t offset;  // first element within the buffer
};

class Layout {
 public:
  Layout(const YokeModelSummary& model, const BucketRules& rules);

  int64_t size() const { return size_; }  // elements of the buffer, padding included
  const std::vector<Slot>& slots() const { return slots_; }  // slots in the order of the buffer
  const std::vector<Bucket>& buckets() const {
    return buckets_;
  }  // buckets in the order of the buffer
  // Return the first element of a parameter within the buffer, and its bucket. -1: the parameter is
  // frozen, and lies in no buffer.
  int64_t offset(int64_t param) const { return offsets_[param]; }
  int64_t bucket_of(int64_t param) const { return bucket_of_[param]; }
  // Returns the elements of a bucket that a rank owns: the shard with this number.
  Bucket shard(int64_t bucket, int rank) const;
  // Returns the parts of parameters in [begin, begin + count) of the buffer, by offset.
  std::vector<Piece> pieces(int64_t begin, int64_t count) const;

 private:
  void place(const BucketRules& rules);

  const YokeModelSummary& model_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> offsets_, bucket_of_;  // one per parameter of the model
  int64_t size_ = 0;
  int shards_;
};

}  // namespace yoke::megatron_compat
