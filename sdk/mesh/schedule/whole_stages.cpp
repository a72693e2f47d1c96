#include "sdk/mesh/schedule/whole_stages.hpp"

#include <algorithm>

namespace yoke::mesh {

std::vector<std::vector<size_t>> evictions(const std::vector<int>& stage_of_use,
                                           int stages,
                                           int most) {
  std::vector<std::vector<size_t>> uses(stages);  // positions of each stage's uses
  for (size_t i = 0; i < stage_of_use.size(); ++i) {
    if (stage_of_use[i] >= 0) uses[stage_of_use[i]].push_back(i);
  }
  const auto next_use = [&](int stage, size_t from) {
    const auto next = std::lower_bound(uses[stage].begin(), uses[stage].end(), from);
    return next == uses[stage].end() ? stage_of_use.size() : *next;
  };
  std::vector<std::vector<size_t>> left(stages);
  std::vector<int> here;
  for (size_t i = 0; i < stage_of_use.size(); ++i) {
    const int stage = stage_of_use[i];
    if (stage < 0 || std::find(here.begin(), here.end(), stage) != here.end()) continue;
    if (static_cast<int>(here.size()) == most) {
      const auto last = std::max_element(
          here.begin(), here.end(), [&](int a, int b) { return next_use(a, i) < next_use(b, i); });
      left[*last].push_back(i);
      here.erase(last);
    }
    here.push_back(stage);
  }
  return left;
}

}  // namespace yoke::mesh
