// The set of elements of a row-major tensor that one piece covers: spans of equal length at a fixed
// stride. Such a piece is what a rank holds of a matrix that is sharded by rows (one span) or by
// columns (one span per row).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace yoke {

// The fields are those of YokePiece: element i of the piece is element begin + (i / run) * stride +
// i % run of the tensor, for i in [0, count). `run` is the length of one span, and the last one may
// be shorter. A flat range, which is a single span, has run == stride == count.
//
//   begin 2, count 5, run 2, stride 6:   . . 0 1 . .
//                                        . . 2 3 . .
//                                        . . 4 . . .
struct StridedSpan {
  int64_t begin = 0, count = 0, run = 0, stride = 0;

  static StridedSpan flat(int64_t begin, int64_t count) { return {begin, count, count, count}; }
  // Returns why these fields cannot be a part of a tensor of `numel` elements, or "" if they can.
  // May be called with any values; all other methods require fields without a fault.
  std::string fault(int64_t numel) const;
  // Returns the same elements, as one flat range if the spans adjoin each other.
  StridedSpan joined() const { return run >= count || run == stride ? flat(begin, count) : *this; }

  bool is_flat() const { return run == count; }
  // Returns the element of the tensor that is element i of the piece, for i in [0, count).
  int64_t element(int64_t i) const { return begin + i / run * stride + i % run; }
  // Returns the element after the last one.
  int64_t end() const { return count == 0 ? begin : element(count - 1) + 1; }
  // Returns the smallest i with element(i) >= `element`; count if there is none.
  int64_t first_from(int64_t element) const {
    if (element <= begin || count == 0) return 0;
    const int64_t ahead = element - begin;
    return std::min(count, ahead / stride * run + std::min(ahead % stride, run));
  }

  // Calls f(element, i, n) for each contiguous part of [from, to), in order: elements
  // [element, element + n) of the tensor are elements [i, i + n) of the piece.
  template <class F>
  void for_each_span(int64_t from, int64_t to, F&& f) const {
    for (int64_t i = from; i < to;) {
      const int64_t n = std::min(run - i % run, to - i);
      f(element(i), i, n);
      i += n;
    }
  }

  // Returns the elements for a message: "[5, 9)" or "[5, 40) in runs of 2 at stride 8".
  std::string text() const;
};

// Calls f(i, j, n) for each contiguous part, in order, of the elements that are both in [from, to)
// of a and in b: elements [i, i + n) of a are the same elements of the tensor as [j, j + n) of b.
template <class F>
void for_each_common(const StridedSpan& a, int64_t from, int64_t to, const StridedSpan& b, F&& f) {
  a.for_each_span(from, to, [&](int64_t element, int64_t i, int64_t n) {
    b.for_each_span(b.first_from(element),
                    b.first_from(element + n),
                    [&](int64_t shared, int64_t j, int64_t m) { f(i + shared - element, j, m); });
  });
}

}  // namespace yoke
