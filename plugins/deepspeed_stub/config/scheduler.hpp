// DeepSpeed's learning-rate schedulers, in the terms of a run file. The host computes the learning
// rate of each step for every backend, so this plugin only says which keys of the run file have the
// same effect.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// A key of the ds_config, and the key of the run file that must have this value.
struct HostKey {
  std::string path;  // path of the key in the ds_config
  std::string key;   // key of the run file
  nlohmann::json value;
};

// Returns the keys that the scheduler of the ds_config determines, with DeepSpeed's defaults for
// those that the file leaves out. A key that is "auto" is not among them. Empty if there is no
// scheduler. Appends to `messages` what cannot be translated. lr: peak learning rate of the run.
std::vector<HostKey> scheduler_keys(const DsConfig& config, double lr, PlanMessages& messages);

// Returns the path of the key that sets the peak learning rate instead of optimizer.params.lr; ""
// if the scheduler does not set it.
std::string peak_key(const DsConfig& config);

}  // namespace yoke::deepspeed_stub
