// Which elements of a flat row-major tensor a piece of it consists of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace yoke {

// As in YokePiece: element i of the piece is element begin + (i / run) * stride + i % run of the
// tensor. A flat range has run == stride == count.
struct StridedSpan {
  int64_t begin = 0, count = 0, run = 0, stride = 0;

  static StridedSpan flat(int64_t begin, int64_t count) { return {begin, count, count, count}; }
  // Of numbers from outside: why they cannot be a part of a tensor of numel elements, "" = they
  // can; and then the same with runs that touch each other made one.
  std::string fault(int64_t numel) const;
  StridedSpan joined() const { return run >= count || run == stride ? flat(begin, count) : *this; }

  bool is_flat() const { return run == count; }
  // Of i in [0, count).
  int64_t element(int64_t i) const { return begin + i / run * stride + i % run; }
  // Behind the last element.
  int64_t end() const { return count == 0 ? begin : element(count - 1) + 1; }
  // The smallest i whose element is not before `element`; count if there is none.
  int64_t first_from(int64_t element) const {
    if (element <= begin || count == 0) return 0;
    const int64_t ahead = element - begin;
    return std::min(count, ahead / stride * run + std::min(ahead % stride, run));
  }

  // f(element, i, n): elements [element, element + n) of the tensor are [i, i + n) of the piece;
  // in order, for all i in [from, to).
  template <class F>
  void for_each_span(int64_t from, int64_t to, F&& f) const {
    for (int64_t i = from; i < to;) {
      const int64_t n = std::min(run - i % run, to - i);
      f(element(i), i, n);
      i += n;
    }
  }

  // "[5, 9)" or "[5, 40) in runs of 2 at stride 8"
  std::string text() const;
};

// f(i, j, n): [i, i + n) of a are the same elements of the tensor as [j, j + n) of b; in order, for
// all that are in both and in [from, to) of a.
template <class F>
void for_each_common(const StridedSpan& a, int64_t from, int64_t to, const StridedSpan& b, F&& f) {
  a.for_each_span(from, to, [&](int64_t element, int64_t i, int64_t n) {
    b.for_each_span(b.first_from(element),
                    b.first_from(element + n),
                    [&](int64_t shared, int64_t j, int64_t m) { f(i + shared - element, j, m); });
  });
}

}  // namespace yoke
