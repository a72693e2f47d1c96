// Checks that `yoke train` and `yoke plan` share, and the call of the worker.
#pragma once

#include <string>
#include <vector>

#include "core/cli/train_request.hpp"
#include "core/config/config.hpp"

namespace yoke {

// Returns an error if the given degrees cannot fit the number of ranks, else "". The backend
// chooses the unset degrees, but whatever it chooses, the product of the given ones must divide the
// number of ranks. world: 0 = the plan decides.
std::string degree_fault(int world, const Degrees& degrees);

// Loads the configuration of a run and finds the worker, whose path it writes to `worker`. Throws
// Stop with all errors of keys, worker and backend. If there is one, an error of the degrees is
// reported with it; otherwise the worker reports the degrees when it makes the plan. world: number
// of ranks; 0 = not known yet.
LoadedConfig check_config(const std::string& path,
                          const std::vector<std::string>& overrides,
                          int world,
                          std::string& worker);

// Runs the worker argv[0] and returns its stdout. Its stderr becomes Stop::text if the worker
// fails, and is printed otherwise. Throws Stop: with the worker's exit code, with 128 + n after
// SIGINT or SIGTERM, and with kExitFailed after another signal.
std::string ask_worker(const std::vector<std::string>& argv);

}  // namespace yoke
