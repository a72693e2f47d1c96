// The program behind `yoke-worker`: one rank of a run, or one of the errands that need LibTorch.
#pragma once

#include <map>
#include <string>

#include "core/model/family.hpp"

namespace yoke {

// main() of a worker. `families` are added to those of the house and may be chosen by `[model]
// family`. Returns the exit code.
int worker_main(int argc, char** argv, const std::map<std::string, Family>& families = {});

}  // namespace yoke
