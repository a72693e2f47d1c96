// distributed_type: DEEPSPEED. Another backend trains such a run, because it reads DeepSpeed's own
// files and has ZeRO as DeepSpeed has it. This backend only translates the config for `yoke config
// import`, and refuses to train it.
#pragma once

#include "plugins/accelerate_compat/config/accelerate_config.hpp"

namespace yoke::accelerate_compat {

// Returns whether the config asks for DeepSpeed.
bool wants_deepspeed(const AccelerateConfig& config);

// Reports the lines of a run file that replace the config, every key that they cannot express, and
// the refusal to train it. A file of DeepSpeed that the config names becomes the line that lets the
// other backend read it.
void plan_deepspeed(const AccelerateConfig& config, const YokePlan& plan, PlanReport& report);

// Notes the keys of deepspeed_config if the config does not ask for DeepSpeed.
void note_unused_deepspeed(const AccelerateConfig& config, PlanMessages& messages);

}  // namespace yoke::accelerate_compat
