// A failure on many ranks has the same reason as one on fewer, if there is one. So the checks of
// the numbers form a chain: N3 (four ranks) and N23 (three) follow from N2 (two), and N2 from N1
// (one).
#include "core/conformance/root_causes.hpp"

#include <algorithm>
#include <map>

#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke {
namespace {

const CheckOutcome* failure(const std::vector<CheckOutcome>& outcomes, const std::string& id) {
  for (const CheckOutcome& o : outcomes)
    if (o.status == CheckOutcome::kFailed && o.check->id == id) return &o;
  return nullptr;
}

std::string simpler(const std::string& id) {
  static const std::map<std::string, std::string> chain = {
      {"N3", "N2"}, {"N23", "N2"}, {"N24", "N2"}, {"N2", "N1"}};
  const auto found = chain.find(id);
  return found == chain.end() ? "" : found->second;
}

// Returns the failed check from which this failure follows because of its root, or "".
std::string by_root(const std::vector<CheckOutcome>& outcomes, const CheckOutcome& o) {
  std::string first;
  for (std::string id = o.root; !id.empty(); id = simpler(id))
    if (id != o.check->id && failure(outcomes, id) != nullptr) first = id;
  return first;
}

bool same_reason(const CheckOutcome& a, const CheckOutcome& b) {
  if (!a.backtrace.empty() && !b.backtrace.empty()) return a.backtrace[0] == b.backtrace[0];
  return a.text == b.text;
}

}  // namespace

void find_root_causes(std::vector<CheckOutcome>& outcomes) {
  for (CheckOutcome& o : outcomes) {
    if (o.status != CheckOutcome::kFailed) continue;
    o.follows = by_root(outcomes, o);
    for (const CheckOutcome& earlier : outcomes) {
      if (&earlier == &o || !o.follows.empty()) break;
      if (earlier.status == CheckOutcome::kFailed && earlier.follows.empty() &&
          same_reason(earlier, o))
        o.follows = earlier.check->id;
    }
  }
  // A check may follow from one that follows from a third.
  for (CheckOutcome& o : outcomes) {
    for (const CheckOutcome* root = failure(outcomes, o.follows);
         root != nullptr && !root->follows.empty();
         root = failure(outcomes, root->follows))
      o.follows = root->follows;
  }
}

std::string followers_text(const std::vector<CheckOutcome>& outcomes, const std::string& id) {
  std::string text;
  for (const CheckOutcome& o : outcomes)
    if (o.status == CheckOutcome::kFailed && o.follows == id)
      text += (text.empty() ? "" : ", ") + std::string(o.check->id);
  return text;
}

std::string unused_axes(const std::vector<CheckOutcome>& outcomes, int32_t nproc) {
  uint32_t declared = 0, run = 0;
  for (const CheckOutcome& o : outcomes) {
    declared |= o.axes_declared;
    run |= o.axes_run;
  }
  std::string keys;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    if (declared & ~run & YOKE_AXIS_BIT(axis))
      keys += (keys.empty() ? "" : ", ") + std::string(yoke_degree_key(axis));
  if (keys.empty()) return "";
  return "no check could run more than one rank with " + keys + ", which describe declares; " +
         (nproc < 2 ? "use --nproc 2 or more" : "see the checks that were not run for the reasons");
}

bool all_good(const std::vector<CheckOutcome>& outcomes) {
  const auto is = [](CheckOutcome::Status status) {
    return [status](const CheckOutcome& o) { return o.status == status; };
  };
  return std::any_of(outcomes.begin(), outcomes.end(), is(CheckOutcome::kPassed)) &&
         std::none_of(outcomes.begin(), outcomes.end(), is(CheckOutcome::kFailed)) &&
         std::all_of(outcomes.begin(), outcomes.end(), [](const CheckOutcome& o) {
           return o.follows.empty();
         });
}

}  // namespace yoke
