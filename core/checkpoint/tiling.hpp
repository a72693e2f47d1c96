// Checks that the pieces of a tensor cover each of its elements exactly once.
#pragma once

#include <string>
#include <vector>

#include "core/checkpoint/layout.hpp"

namespace yoke {

// Sorts the pieces of each tensor by `begin` and checks that they tile it. All pieces of a tensor
// that are not flat must have the same stride. Otherwise throws Error with `code`; the message
// begins with `where` and names the tensor, the elements and the ranks. The time depends on the
// number of pieces, not on the number of their spans or elements.
void check_tiling(std::vector<StoredTensor>* tensors, int32_t code, const std::string& where);

}  // namespace yoke
