// Do the pieces of a tensor cover each of its elements exactly once?
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/layout.hpp"

namespace yoke {

// Sorts the pieces of each tensor and checks that they tile it. All pieces of a tensor that are not
// flat have one stride. On failure throws `code` naming the tensor, the elements and the ranks;
// `where` begins the message. The work follows from the number of pieces, not of their runs.
void check_tiling(std::vector<StoredTensor>* tensors, int32_t code, const std::string& where);

}  // namespace yoke
