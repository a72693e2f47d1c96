// Which matrices of a model are multiplied in fp8: all that precision.fp8_skip does not name. No
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

// A matrix of linear layers: its name without ".weight", and its sides.
struct NamedMatrix {
  std::string name;  // "model.layers.0.mlp.down_proj"
  int64_t rows, columns;
};

// Returns for each matrix whether its products are in fp8. An entry of `skip` names matrices by
// consecutive parts of their names: "lm_head", "layers.0", "mlp.down_proj". Throws
// Error(INVALID_ARGUMENT) with one line for each entry that names no matrix, and for each kind of
// matrix whose sides are not multiples of 16, which products in fp8 need.
std::vector<bool> choose_fp8(const std::vector<NamedMatrix>& matrices,
                             const std::vector<std::string>& skip);

}  // namespace yoke
