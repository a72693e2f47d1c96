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

// A run that can be started, or about which the worker can be asked.
struct CheckedRun {
  LoadedConfig config;
  std::string worker;    // path of the worker
  std::string untested;  // path of the backend, if nobody has probed it yet; "" = it can be loaded
};

// Who loads the backend for the first time.
enum class FirstLoad { kNow, kByWorker };

// Loads the configuration of a run and finds its worker and backend. Throws Stop with all errors of
// keys, worker and backend. If there is one, an error of the degrees is reported with it; otherwise
// the worker reports the degrees when it makes the plan. world: number of ranks; 0 = not known yet.
// load: kByWorker if ask_worker() follows, which then probes the backend. That saves the time in
// which one more process would load LibTorch. If there is an error, the backend is probed in any
// case, so that its errors are reported together with the others.
CheckedRun check_config(const std::string& path,
                        const std::vector<std::string>& overrides,
                        int world,
                        FirstLoad load);

// Asks the worker of a run, which prints its answer. words: the flags of the question, and the run
// file with its overrides. Returns the worker's stdout. Its stderr becomes Stop::text if the worker
// fails, and is printed otherwise. Throws Stop: with the worker's exit code, with 128 + n after
// SIGINT or SIGTERM, and with kExitFailed after another signal.
std::string ask_worker(const CheckedRun& run, const std::vector<std::string>& words);

}  // namespace yoke
