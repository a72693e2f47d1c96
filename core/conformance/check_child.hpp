// `yoke-worker --check ID --backend PATH --nproc N --report FILE`: one check of the conformance kit
// in a process of its own.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Appends lines to the report: "at ..." before and after every call of the backend, and last one
// JSON object {"status": "passed" | "failed", "text": ...}. Returns the exit code: 0 whatever the
// verdict, so that any other ending is the backend's doing. Throws Error(INVALID_ARGUMENT).
int check_main(const std::vector<std::string>& words);

}  // namespace yoke
