// The program behind `yoke-worker`: it runs one rank of a run, or a command that needs LibTorch. A
// program of your own that also knows your models is
//
//   int main(int argc, char** argv) {
//     return yoke::worker_main(argc, argv, {{"mine", {make_blocks}}});
//   }
//
// A run file chooses it by `worker = "/absolute/path"`, and the model by `[model] family = "mine"`.
#pragma once

#include <map>
#include <string>

#include "yoke/model.hpp"

namespace yoke {

// The main function of a worker. `families` are added to those that Yoke knows, by name; a name
// that Yoke knows already keeps its meaning. Takes the whole command line, which `yoke` writes.
// Returns the exit code.
YOKE_WORKER_API int worker_main(int argc,
                                char** argv,
                                const std::map<std::string, Family>& families = {});

}  // namespace yoke
