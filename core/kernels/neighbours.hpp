// Tensors that are neighbours in memory, seen as one tensor without copying them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::ops {

// Returns whether t has at least two dims, its last dim is contiguous, and its rows begin at equal
// distances of at least `columns` elements.
bool has_regular_rows(const at::Tensor& t, int64_t columns);

// Returns whether contiguous matrices [rows_i, columns] follow each other immediately.
bool are_stacked(at::TensorList matrices);
// Returns such matrices as one matrix [sum of rows_i, columns]. It shares their memory, but does
// not keep it alive unless there is only one.
at::Tensor stacked(at::TensorList matrices);

// Returns whether each row of tensors [..., columns_i] continues the row of the tensor before, and
// the rows are at equal distances.
bool are_side_by_side(at::TensorList tensors);
// Returns such tensors as one tensor [..., sum of columns_i], which shares their memory but does
// not keep it alive.
at::Tensor side_by_side(at::TensorList tensors);

// Returns a tensor [..., columns_i] for each number of columns, uninitialized, such that the
// results are side by side. sizes: the dims before the last one.
std::vector<at::Tensor> empty_side_by_side(at::IntArrayRef sizes,
                                           at::IntArrayRef columns,
                                           const at::TensorOptions& options);

// Splits a tensor along its last dim into views with these numbers of columns.
std::vector<at::Tensor> parts_of(const at::Tensor& all, at::IntArrayRef columns);

}  // namespace yoke::ops
