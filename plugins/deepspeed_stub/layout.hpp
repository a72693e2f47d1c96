// DeepSpeed's two partitions of a model over data ranks: FlatLayout at ZeRO stages 0 to 2,
// SliceLayout at stage 3. They only compute sizes and offsets, which count elements; they neither
// hold values nor communicate.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

// The properties of a model that determine its layout. Parameters and blocks are identified by
// their index in the summary.
struct ModelSpec {
  struct Param {
    int64_t numel;
    bool trainable, decay;
    std::vector<int64_t> blocks;  // blocks that use it, ascending
  };
  explicit ModelSpec(const YokeModelSummary& summary);
  int64_t block_elements(int64_t block) const;  // total size of its parameters

  std::vector<Param> params;
  std::vector<std::vector<int64_t>> blocks;  // parameters by block
};

// Elements [begin, begin + count) of a parameter. A rank keeps them at [offset, offset + count) of
// its arrays.
struct Piece {
  int64_t param, begin, count, offset;
};

// The elements of a set of parameters that one rank keeps.
struct Owned {
  std::vector<Piece> pieces;  // sorted by offset
  int64_t size = 0;           // elements, padding included
  int64_t decay_end = 0;      // weight decay applies to [0, decay_end)
};

// Consecutive parameters of a layout whose gradients are reduced together.
struct Bucket {
  std::vector<int64_t> params;
  int64_t begin, end;  // range of elements of the layout
};

// The layout of ZeRO stages 0 to 2. All parameters are placed one after another, those with weight
// decay first. The total is padded to a multiple of 2 x ranks and cut into one equal slice per
// rank. A cut may go through a parameter:
//
//   | embed            | up       | down     | bias | gain | pad |
//   | slice of rank 0         | slice of rank 1                  |
class FlatLayout {
 public:
  // Lays out the trainable parameters, or the frozen ones if !trainable. model must outlive it.
  FlatLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }            // padding included
  int64_t slice() const { return size_ / ranks_; }  // elements per rank
  int64_t offset(int64_t param) const { return offsets_[param]; }
  const std::vector<int64_t>& params() const { return params_; }  // sorted by offset
  // Returns the pieces of parameters in [begin, end). Their offsets are relative to `begin`.
  Owned owned(int64_t begin, int64_t end) const;
  // Cuts the layout, padding included, into buckets of at most `elements` elements; a larger
  // parameter gets its own bucket. Returns them in the order in which a backward completes them.
  std::vector<Bucket> buckets(int64_t elements) const;

 private:
  const ModelSpec& model_;
  std::vector<int64_t> params_;
  std::vector<int64_t> offsets_;  // one per parameter of the model; -1 = not in this layout
  int64_t size_ = 0, decay_end_ = 0;
  int ranks_;
};

// The layout of ZeRO stage 3. Every parameter is padded to a multiple of the number of ranks and
// cut into one equal slice per rank. A rank keeps its slices of all parameters contiguously, those
// with weight decay first.
class SliceLayout {
 public:
  // Lays out the trainable parameters, or the frozen ones if !trainable. model must outlive it.
  SliceLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }  // total size of the slices of one rank
  int64_t slice(int64_t param) const { return (model_.params[param].numel + ranks_ - 1) / ranks_; }
  int64_t offset(int64_t param) const {
    return offsets_[param];
  }  // position in the arrays of a rank
  const std::vector<int64_t>& params() const { return params_; }  // sorted by offset
  Owned owned(int rank) const;
  // Like FlatLayout::buckets. `elements` counts elements of whole parameters, while begin and end
  // of a bucket count elements of one rank's slices.
  std::vector<Bucket> buckets(int64_t elements) const;

 private:
  const ModelSpec& model_;
  std::vector<int64_t> params_;
  std::vector<int64_t> offsets_;  // one per parameter of the model; -1 = not in this layout
  int64_t size_ = 0, decay_end_ = 0;
  int ranks_;
};

}  // namespace yoke::deepspeed_stub
