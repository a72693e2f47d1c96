// The main function of `yoke-worker`, the program that runs one rank of a run, or a command that
// needs LibTorch. A worker of your own that adds your models is
//
//   int main(int argc, char** argv) {
//     return yoke::worker_main(argc, argv, {{"mine", {make_blocks}}});
//   }
//
// A run file selects it by `worker = "/absolute/path"`, and the model by `[model] family = "mine"`.
#pragma once

#include <map>
#include <string>

#include "yoke/model.hpp"

namespace yoke {

// Runs a worker. `families`, by name, are added to Yoke's own families; a name that Yoke already
// uses keeps its meaning. argc and argv are the arguments of main, which the program `yoke` writes.
// Returns the exit code.
YOKE_WORKER_API int worker_main(int argc,
                                char** argv,
                                const std::map<std::string, Family>& families = {});

}  // namespace yoke
