#include "sdk/mesh/schedule/checked_lists.hpp"

#include "sdk/mesh/schedule/checker.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::mesh {

std::vector<std::vector<Action>> checked_lists(const std::vector<StepSpec>& specs) {
  std::vector<std::vector<Action>> lists;
  for (const StepSpec& spec : specs) lists.push_back(build_schedule(spec));
  const auto faults = check_ranks(specs, lists);
  if (faults.empty()) return lists;
  throw Error(YOKE_INTERNAL,
              concat("the schedule of a step is wrong: pp rank ",
                     faults[0].rank,
                     ", action ",
                     faults[0].action,
                     ": ",
                     faults[0].text));
}

}  // namespace yoke::mesh
