// Finds the failures that follow from others, and what the checks as a whole have not covered.
#pragma once

#include <string>
#include <vector>

#include "core/conformance/check_process.hpp"

namespace yoke {

// Sets CheckOutcome::follows of every failure that follows from another one: from that of the check
// which examines its reason alone (conformance::Cause), or from an earlier one that is the same
// crash or has the same text.
void find_root_causes(std::vector<CheckOutcome>& outcomes);

// Returns the ids of the failures that follow from the failure `id`, as text: "N4, N5".
std::string followers_text(const std::vector<CheckOutcome>& outcomes, const std::string& id);

// Returns a sentence that names the axes that the backend declares, but along which no check has
// run more than one rank, or "".
std::string unused_axes(const std::vector<CheckOutcome>& outcomes, int32_t nproc);

// Returns whether the outcomes are good: at least one check passed, and none failed or was not run
// because of a failure.
bool all_good(const std::vector<CheckOutcome>& outcomes);

}  // namespace yoke
