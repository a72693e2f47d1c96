#include "core/checkpoint/shapes.hpp"

#include <algorithm>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kShownDifferences = 20;

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Shapes shapes_of(const YokeModelSummary& model) {
  Shapes shapes;
  for (uint64_t i = 0; i < model.num_params; ++i) {
    const YokeParameter& p = *model.params[i];
    shapes[std::string(view(p.name))] = {p.shape, p.shape + p.ndim};
  }
  return shapes;
}

void require_same_shapes(const Shapes& model,
                         const Shapes& stored,
                         const std::string& subject,
                         const std::string& place) {
  std::vector<std::string> differences;
  for (const auto& [name, shape] : model) {
    const auto at = stored.find(name);
    if (at == stored.end()) {
      differences.push_back("'" + name + "' " + shape_text(shape) + " is not in " + place);
    } else if (at->second != shape) {
      differences.push_back("'" + name + "' is " + shape_text(shape) + " in the model, " +
                            shape_text(at->second) + " in " + place);
    }
  }
  for (const auto& [name, shape] : stored) {
    if (model.contains(name)) continue;
    differences.push_back("'" + name + "' " + shape_text(shape) + " is not in the model");
  }
  if (differences.empty()) return;
  std::string text = subject + ":";
  for (size_t i = 0; i < std::min(differences.size(), kShownDifferences); ++i)
    text += "\n  " + differences[i];
  if (differences.size() > kShownDifferences) {
    text += concat("\n  and ", differences.size() - kShownDifferences, " more");
  }
  throw Error(YOKE_FAILED_PRECONDITION, text);
}

}  // namespace yoke
