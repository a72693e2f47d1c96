// Checks the pieces of state that a backend passes. They come from another library, so nothing in
// them is trusted. Every function throws Error (INTERNAL) with the name of the tensor if a piece
// breaks the contract.
#pragma once

#include "core/checkpoint/layout.hpp"
#include "yoke/parallel_backend.h"

namespace yoke {

// Returns a description of the tensor to which the piece belongs; its fields `file` and `pieces`
// are left empty. Throws if the piece is invalid: wrong struct, name, kind, dtype, shape or
// elements.
StoredTensor tensor_of(const YokePiece& piece);

// Returns the elements of its tensor that the piece covers. tensor_of() must have accepted the
// piece.
StridedSpan span_of(const YokePiece& piece);

// Throws if two pieces of one tensor disagree about its shape or dtype.
void require_same(const StoredTensor& a, const StoredTensor& b);

// Returns the memory of the piece's view. Throws unless it is `count` contiguous elements of
// `dtype` in host memory.
char* data_of(const YokePiece& piece, int32_t dtype);

}  // namespace yoke
