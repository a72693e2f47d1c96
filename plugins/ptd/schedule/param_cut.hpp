// Which elements of a parameter a rank of tp has, as runs of the whole, row-major tensor.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke::ptd {

// Element i of `count` is element begin + i / run * stride + i % run of the whole tensor, and
// element local + i of this rank's part. One run: run = count, stride = 0.
struct ParamSpan {
  int64_t begin, count, run, stride;
  int64_t local;
};

struct ParamCut {
  // Of the rank's part, row-major: runs of `run` elements, `stride` apart in the whole, the first
  // at `first`. run = 0: the rank has the whole.
  int64_t first = 0, run = 0, stride = 0;

  // The part of `rank` if dim of a tensor of `shape` is cut between `ranks`; ranks divide it.
  static ParamCut along(const std::vector<int64_t>& shape, int64_t dim, int rank, int ranks);

  // Elements [begin, begin + count) of the part: at most two pieces, none for count = 0.
  std::vector<ParamSpan> spans(int64_t begin, int64_t count) const;
};

}  // namespace yoke::ptd
