// The optimizer that a ds_config chooses: its type, and the parameters that choose a variant.
//
//   optimizer.type   params                   train.optimizer   train.bias_correction
//   AdamW            -                        adamw             bias_correction
//   Adam             adam_w_mode: true        adamw             bias_correction
//   Adam             adam_w_mode: false       adam              bias_correction
//   Lion             -                        lion              -
//
// A parameter that the file leaves out has DeepSpeed's default, which is true for both. Without a
// type the file agrees with every optimizer of this backend, unless it gives a parameter.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plugins/deepspeed_stub/config/ds_config.hpp"

namespace yoke::deepspeed_stub {

// The values of a run file that a ds_config means; unset = it leaves them to the run.
struct OptimizerType {
  std::optional<std::string> optimizer;  // train.optimizer
  std::optional<bool> corrects;          // train.bias_correction
};

// Returns whether this backend has the optimizer that DeepSpeed gets with this optimizer.type.
bool has_optimizer(std::string type);

// Returns what the ds_config means; nothing for a type that is not in the table.
OptimizerType optimizer_type(const DsConfig& config);

// Returns whether DeepSpeed's default of a key counts, because the file does not give it: it names
// an optimizer that has the parameter at `path`, or the key is gradient_clipping.
bool uses_default(const DsConfig& config, std::string_view path);

// Returns DeepSpeed's default of a key, as JSON.
std::string_view default_of(const DsConfig& config, std::string_view path);

// Refuses an optimizer that this backend does not have, a ds_config that means another one than
// that of the run, and parameters that DeepSpeed's class does not have.
void check_optimizer(const DsConfig& config, const YokeOptimizer& run, PlanMessages& messages);

}  // namespace yoke::deepspeed_stub
