// Keeps the result of the last all-gather on a mesh. A tensor and its views are often needed by
// consecutive operators, for example by a product and by the product with its transposed gradient;
// the second use must not gather again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace yoke::mesh {

// Holds at most one gathered tensor. It is identified by a number that is the same on every rank,
// so that either all ranks of an axis find it or none does: a rank that gathered alone would hang.
class GatherMemo {
 public:
  // Returns the number of a new value. All ranks create values in the same order, so their numbers
  // agree.
  int64_t new_value() { return ++last_value_; }

  // Returns the gathered rows [outer, n, inner] (see redistribute.cpp) of a value, or nullptr.
  // Value 0 is never found.
  const at::Tensor* find(int64_t value, int axis, at::IntArrayRef sizes) const {
    const bool found = value != 0 && value == value_ && axis == axis_ && rows_.sizes() == sizes;
    return found ? &rows_ : nullptr;
  }
  // Stores the rows in place of the previous ones, and returns them.
  const at::Tensor& keep(int64_t value, int axis, at::Tensor rows) {
    value_ = value;
    axis_ = axis;
    rows_ = std::move(rows);
    return rows_;
  }
  // Drops the stored rows. Must be called when any tensor is written to, because it may be the
  // gathered one.
  void forget() { keep(0, -1, {}); }

 private:
  int64_t last_value_ = 0;
  int64_t value_ = 0;
  int axis_ = -1;
  at::Tensor rows_;
};

}  // namespace yoke::mesh
