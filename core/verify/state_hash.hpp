// A hash of tensors that does not depend on how they are cut into pieces. No LibTorch.
#pragma once

#include <cstdint>

#include "yoke/parallel_backend.h"

namespace yoke {

// Returns the hash of a piece. The hashes of pieces that tile a tensor add up (modulo 2^64) to the
// hash of the whole tensor, so equal tensors have equal hashes in every layout. piece.view must be
// host memory with elements of 1, 2, 4 or 8 bytes; throws Error(INVALID_ARGUMENT) for other sizes.
uint64_t state_hash(const YokePiece& piece);

}  // namespace yoke
