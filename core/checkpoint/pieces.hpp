// Pieces as a backend passes them, checked: they come from another library.
#pragma once

#include "core/checkpoint/layout.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Which elements of its tensor a piece is; the piece must have passed tensor_of.
StridedSpan span_of(const YokePiece& piece);

// The tensor that a piece is part of. INTERNAL naming it if the piece is impossible: wrong struct,
// name, kind, dtype, shape, or elements.
StoredTensor tensor_of(const YokePiece& piece);

// INTERNAL if two pieces of one tensor disagree about its shape or dtype.
void require_same(const StoredTensor& a, const StoredTensor& b);

// The memory of the piece's view, which must be count compact elements of `dtype` in host memory;
// INTERNAL otherwise.
char* data_of(const YokePiece& piece, int32_t dtype);

}  // namespace yoke
