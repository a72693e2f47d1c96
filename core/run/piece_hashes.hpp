// Computes the hashes of pieces of state where the pieces are: on the host or on a device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

// Used by one thread at a time, with the same current stream in all calls.
class PieceHashes {
 public:
  // Hashes a piece like state_hash(). If its view is memory of a device, only queues the work on
  // the current stream; the memory must stay valid for that. All such pieces are on one device.
  // Elements have 1, 2, 4 or 8 bytes; for other sizes throws Error(INVALID_ARGUMENT) for a piece in
  // host memory, and another std::exception for one on a device.
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
