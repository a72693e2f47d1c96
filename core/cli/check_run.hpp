// What `yoke train` and `yoke plan` do before the worker makes a plan, and how they ask it.
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

// Loads the configuration of a run and finds the worker, whose path it writes to `worker`. Checks
// everything that does not depend on the plan (keys, worker, backend, degrees), and throws Stop with
// all errors at once. world: number of ranks; 0 = not known yet.
LoadedConfig check_config(const std::string& path,
                          const std::vector<std::string>& overrides,
                          int world,
                          std::string& worker);

// Runs the worker argv[0] and returns what it has printed on stdout. What it prints on stderr goes
// there unchanged; with capture_err, into the text of Stop if the worker fails. Throws Stop with the
// worker's exit code.
std::string ask_worker(const std::vector<std::string>& argv, bool capture_err = false);

}  // namespace yoke
