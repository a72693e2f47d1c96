// DeepSpeed's two ways to partition a model over data ranks. Pure arithmetic: no memory, no
// communication. All sizes and offsets count elements.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

// The model as the layouts see it. Parameters and blocks are named by their index in the summary.
struct ModelSpec {
  struct Param {
    int64_t numel;
    bool trainable, decay;
    std::vector<int64_t> blocks;  // blocks that use it, ascending
  };
  explicit ModelSpec(const YokeModelSummary& summary);
  int64_t block_elements(int64_t block) const;  // sum over the parameters of the block

  std::vector<Param> params;
  std::vector<std::vector<int64_t>> blocks;  // parameters by block
};

// Elements [begin, begin + count) of a parameter. A rank keeps them at [offset, offset + count) of
// its arrays.
struct Piece {
  int64_t param, begin, count, offset;
};

// What one rank keeps of a set of parameters.
struct Owned {
  std::vector<Piece> pieces;  // sorted by offset
  int64_t size = 0;           // elements, padding included
  int64_t decay_end = 0;      // weight decay applies to [0, decay_end)
};

// Parameters that are neighbours in a layout and are reduced or gathered together.
struct Bucket {
  std::vector<int64_t> params;
  int64_t begin, end;  // elements of the layout
};

// The layout of ZeRO stages 0 to 2. All parameters follow one another, those with weight decay
// first. The end is padded to a multiple of 2 x ranks, and the whole is cut into equal slices, also
// in the middle of a parameter:
//
//   | embed            | up       | down     | bias | gain | pad |
//   | slice of rank 0         | slice of rank 1                  |
class FlatLayout {
 public:
  // Lays out the trainable parameters, or the frozen ones. model must outlive the layout.
  FlatLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }            // padding included
  int64_t slice() const { return size_ / ranks_; }  // elements of each rank
  int64_t offset(int64_t param) const { return offsets_[param]; }
  const std::vector<int64_t>& params() const { return params_; }  // sorted by offset
  // Returns what lies in [begin, end). Offsets count from `begin`.
  Owned owned(int64_t begin, int64_t end) const;
  // Cuts the layout, padding included, into buckets of at most `elements`; a larger parameter is a
  // bucket of its own. Returns them in the order in which a backward completes them.
  std::vector<Bucket> buckets(int64_t elements) const;

 private:
  const ModelSpec& model_;
  std::vector<int64_t> params_;
  std::vector<int64_t> offsets_;  // one per parameter of the model; -1 = not in this layout
  int64_t size_ = 0, decay_end_ = 0;
  int ranks_;
};

// The layout of ZeRO stage 3. Every parameter is padded to a multiple of the number of ranks and
// cut into equal slices. A rank keeps its slices one after the other, those with weight decay
// first.
class SliceLayout {
 public:
  // Lays out the trainable parameters, or the frozen ones. model must outlive the layout.
  SliceLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }  // elements of all slices of one rank
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
