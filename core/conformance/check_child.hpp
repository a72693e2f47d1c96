// `yoke-worker --check ID --backend PATH --nproc N --report FILE`: runs one check of the
// conformance kit in its own process.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Runs one check and ends the process. `words` are the arguments after --check. Appends lines to
// the report: "at ..." before and after every call of the backend, and at the end one JSON object
// {"status": "passed" | "failed", "text": ...}. The exit code is 0 whether the check passes or
// fails, so any other exit is caused by the backend. Throws Error(INVALID_ARGUMENT) if there is no
// such check.
int check_main(const std::vector<std::string>& words);

}  // namespace yoke
