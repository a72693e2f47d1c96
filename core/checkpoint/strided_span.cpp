#include "core/checkpoint/strided_span.hpp"

namespace yoke {
namespace {

std::string n(int64_t value) {
  return std::to_string(value);
}

}  // namespace

std::string StridedSpan::fault(int64_t numel) const {
  const std::string outside = "the piece of " + n(count) + " elements from " + n(begin) +
                              " is not inside its " + n(numel) + " elements";
  if (begin < 0 || count < 0 || begin > numel || count > numel - begin) return outside;
  if (count > 0 && run < 1)
    return "a piece has runs of " + n(run) + " elements, at least 1 is allowed";
  if (joined().is_flat()) return "";
  if (stride < run || numel % stride != 0) {
    return "a piece has runs of " + n(run) + " elements at stride " + n(stride) +
           "; a stride is at least the run and divides the " + n(numel) + " elements of the tensor";
  }
  // end() may be asked for only now: its product fits.
  if ((count - 1) / run > (numel - 1 - begin) / stride || end() > numel)
    return outside + ", in runs of " + n(run) + " at stride " + n(stride);
  return "";
}

std::string StridedSpan::text() const {
  const std::string range = "[" + n(begin) + ", " + n(end()) + ")";
  return is_flat() ? range : range + " in runs of " + n(run) + " at stride " + n(stride);
}

}  // namespace yoke
