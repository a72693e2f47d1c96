// Names and shapes of the tensors of a model, and how they differ from those of stored tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke {

using Shapes = std::map<std::string, std::vector<int64_t>>;  // shape of each tensor, by name

// Returns a shape for a message: "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

// Returns the names and shapes of the model's parameters.
Shapes shapes_of(const YokeModelSummary& model);

// Throws Error (FAILED_PRECONDITION) if names or shapes differ. The message begins with `subject`
// and lists the first 20 differences; `place`, such as "the checkpoint", names the stored side.
void require_same_shapes(const Shapes& model,
                         const Shapes& stored,
                         const std::string& subject,
                         const std::string& place);

}  // namespace yoke
