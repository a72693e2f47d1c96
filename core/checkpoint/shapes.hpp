// What a model needs of a set of stored tensors, and how the two differ.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

using Shapes = std::map<std::string, std::vector<int64_t>>;  // by name

std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 3]"

Shapes shapes_of(const YokeModelSummary& model);

// Throws FAILED_PRECONDITION if names or shapes differ: `subject` and the first 20 differences,
// which call the stored side `place` ("the checkpoint").
void require_same_shapes(const Shapes& model,
                         const Shapes& stored,
                         const std::string& subject,
                         const std::string& place);

}  // namespace yoke
