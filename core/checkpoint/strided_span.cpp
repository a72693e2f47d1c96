#include "core/checkpoint/strided_span.hpp"

#include "yoke/text.hpp"

namespace yoke {

std::string StridedSpan::fault(int64_t numel) const {
  const std::string outside = concat("the piece of ",
                                     count,
                                     " elements from ",
                                     begin,
                                     " is not inside the ",
                                     numel,
                                     " elements of its tensor");
  if (begin < 0 || count < 0 || begin > numel || count > numel - begin) return outside;
  if (count > 0 && run < 1)
    return concat("a piece has runs of ", run, " elements; allowed: at least 1");
  if (joined().is_flat()) return "";
  if (stride < run || numel % stride != 0) {
    return concat("a piece has runs of ",
                  run,
                  " elements at stride ",
                  stride,
                  "; a stride is at least the run and divides the ",
                  numel,
                  " elements of the tensor");
  }
  // The first condition guarantees that the product in end() does not overflow.
  if ((count - 1) / run > (numel - 1 - begin) / stride || end() > numel)
    return concat(outside, ", in runs of ", run, " at stride ", stride);
  return "";
}

std::string StridedSpan::text() const {
  const std::string range = concat("[", begin, ", ", end(), ")");
  return is_flat() ? range : concat(range, " in runs of ", run, " at stride ", stride);
}

}  // namespace yoke
