// The hashes of pieces of state, which are computed where the pieces are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

// One thread at a time.
class PieceHashes {
 public:
  // Hashes a piece like state_hash(). If its view is memory of a device, this only queues the work
  // on the current stream. Throws Error(INVALID_ARGUMENT) if the elements have another size than 1,
  // 2, 4 or 8 bytes.
  void add(const YokePiece& piece);

  // Returns the hashes in the order of add(). Waits for the device once, unless all pieces are in
  // host memory.
  std::vector<uint64_t> values() const;

 private:
  std::vector<uint64_t> values_;    // hashes of the pieces in host memory, and 0 for the others
  std::vector<size_t> on_device_;   // indices of the others in values_
  std::vector<at::Tensor> hashes_;  // their hashes on the device: int64, kBlock in each tensor
};

}  // namespace yoke
