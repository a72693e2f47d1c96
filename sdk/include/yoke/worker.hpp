// The program behind `yoke-worker`: one rank of a run, or one of the errands that need LibTorch. A
// worker of one's own is
//
//   int main(int argc, char** argv) {
//     return yoke::worker_main(argc, argv, {{"mine", {make_blocks}}});
//   }
//
// chosen by `worker = "/absolute/path"` and `[model] family = "mine"` in the run file.
#pragma once

#include <map>
#include <string>

#include "yoke/model.hpp"

namespace yoke {

// main() of a worker. `families` are added to those of the house and may be chosen by `[model]
// family`. Returns the exit code.
YOKE_WORKER_API int worker_main(int argc,
                                char** argv,
                                const std::map<std::string, Family>& families = {});

}  // namespace yoke
