// Who keeps what: DeepSpeed's two ways to partition a model over data ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::deepspeed_stub {

// The model as layouts see it; parameters and blocks by their index in the summary.
struct ModelSpec {
  struct Param {
    int64_t numel;
    bool trainable, decay;
    std::vector<int64_t> blocks;  // that use it, ascending
  };
  explicit ModelSpec(const YokeModelSummary& summary);
  int64_t block_elements(int64_t block) const;  // of its parameters

  std::vector<Param> params;
  std::vector<std::vector<int64_t>> blocks;
};

// Elements [begin, begin + count) of a parameter are elements [offset, offset + count) of a rank's
// arrays.
struct Piece {
  int64_t param, begin, count, offset;
};

// What one rank keeps of a set of parameters.
struct Owned {
  std::vector<Piece> pieces;  // by rising offset
  int64_t size = 0;           // elements, padding included
  int64_t decay_end = 0;      // weight decay applies to [0, decay_end)
};

// Parameters that follow each other in a layout and are reduced or gathered together.
struct Bucket {
  std::vector<int64_t> params;
  int64_t begin, end;  // elements of the layout
};

// ZeRO stages 0 to 2: all parameters one after the other, those that decay first, padded to a
// multiple of 2 x ranks and cut into equal slices, wherever the cut falls.
class FlatLayout {
 public:
  // Of the trainable parameters, or of the others.
  FlatLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }
  int64_t slice() const { return size_ / ranks_; }  // elements of a rank
  int64_t offset(int64_t param) const { return offsets_[param]; }
  const std::vector<int64_t>& params() const { return params_; }
  // What lies in [begin, end); offsets count from begin.
  Owned owned(int64_t begin, int64_t end) const;
  // Cuts the whole, padding included, into buckets of at most `elements`, or of one parameter; in
  // the order in which a backward completes them.
  std::vector<Bucket> buckets(int64_t elements) const;

 private:
  const ModelSpec& model_;
  std::vector<int64_t> params_;
  std::vector<int64_t> offsets_;  // by parameter
  int64_t size_ = 0, decay_end_ = 0;
  int ranks_;
};

// ZeRO stage 3: every parameter is padded to a multiple of the ranks and cut into equal slices. A
// rank keeps its slices one after the other, those that decay first.
class SliceLayout {
 public:
  SliceLayout(const ModelSpec& model, bool trainable, int ranks);
  int64_t size() const { return size_; }  // of a rank's slices
  int64_t slice(int64_t param) const { return (model_.params[param].numel + ranks_ - 1) / ranks_; }
  int64_t offset(int64_t param) const { return offsets_[param]; }
  const std::vector<int64_t>& params() const { return params_; }
  Owned owned(int rank) const;
  // As FlatLayout's; `elements` are those of whole parameters, begin and end those of slices.
  std::vector<Bucket> buckets(int64_t elements) const;

 private:
  const ModelSpec& model_;
  std::vector<int64_t> params_;
  std::vector<int64_t> offsets_;
  int64_t size_ = 0, decay_end_ = 0;
  int ranks_;
};

}  // namespace yoke::deepspeed_stub
