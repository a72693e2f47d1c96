// Tensors that are neighbours in memory, seen as one tensor without copying them.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace yoke::ops {

// Returns whether the rows (the last dim) of t are contiguous and at equal distances of at least
// `columns` elements.
bool has_regular_rows(const at::Tensor& t, int64_t columns);

// Returns contiguous matrices [rows_i, columns] that follow each other immediately as one matrix
// [sum of rows_i, columns]; undefined if they are not like that. The result shares their memory but
// does not keep it alive.
at::Tensor stacked(at::TensorList matrices);

// Returns tensors [..., columns_i], of which each row continues the row of the tensor before, as
// one tensor [..., sum of columns_i]; undefined if they are not like that. The rows are at equal
// distances. The result shares their memory but does not keep it alive.
at::Tensor side_by_side(at::TensorList tensors);

// Returns a tensor for each of `tensors`, with its shape and options, such that side_by_side()
// takes the results. The elements are unspecified.
std::vector<at::Tensor> empty_side_by_side(at::TensorList tensors);

}  // namespace yoke::ops
