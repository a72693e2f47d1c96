// A hash of tensors that does not depend on how they are cut. No LibTorch.
#pragma once

#include <cstdint>

#include "yoke/parallel_backend.h"

namespace yoke {

// Sum over the elements of a piece of a mix of their bits and their places in the whole tensor. The
// hashes of pieces that tile a tensor add up (modulo 2^64) to the hash of the tensor, so that equal
// tensors have equal hashes in every layout. piece.view is host memory of 1, 2, 4 or 8 bytes an
// element; throws Error(INVALID_ARGUMENT) for others.
uint64_t state_hash(const YokePiece& piece);

}  // namespace yoke
