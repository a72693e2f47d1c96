// Computes which elements of a parameter a rank of tp has, as spans of the whole, row-major tensor.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::mesh {

// Elements of a parameter that form runs of equal length at equal distances, as in YokePiece.
// Element i of `count` is element begin + i / run * stride + i % run of the whole tensor, and
// element local + i of this rank's part. A single run has run = count and stride = 0.
struct ParamSpan {
  int64_t begin, count, run, stride;
  int64_t local;
};

// The part of a parameter that one rank of tp has.
struct ParamCut {
  // In row-major order the part consists of runs of `run` elements that lie `stride` apart in the
  // whole tensor; the first one begins at `first`. run = 0: the rank has the whole parameter.
  int64_t first = 0, run = 0, stride = 0;

  // Returns the part of `rank` when dim `dim` of a tensor of `shape` is cut between `ranks` ranks,
  // which must divide that dim.
  static ParamCut along(const std::vector<int64_t>& shape, int64_t dim, int rank, int ranks);

  // Returns elements [begin, begin + count) of the part: at most two spans, none for count = 0.
  std::vector<ParamSpan> spans(int64_t begin, int64_t count) const;
};

// Returns, for each parameter, the part that rank tp_rank of `tp` ranks holds.
std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp);

}  // namespace yoke::mesh
