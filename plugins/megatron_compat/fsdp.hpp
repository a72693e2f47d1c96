// FSDP, of Megatron and of PyTorch: all data ranks share parameters, gradients and moments. The
// backend ptd has that, so it runs such a command line as a whole. No function here uses LibTorch.
#pragma once

#include <memory>

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/settings.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

// Reads the arguments about FSDP. Contradictions, and most of what Megatron refuses, are added to
// `messages`. Of the strategies of --use-megatron-fsdp, `optim` is the distributed optimizer of
// this backend and `no_shard` is plain data parallelism, so neither sets settings.fsdp.
void read_fsdp(const Config& config, Settings& settings, PlanMessages& messages);

// Lets ptd complete a plan with settings.fsdp, whose degrees are set.
void plan_with_fsdp(const YokePlanArgs& args,
                    const Config& config,
                    const Settings& settings,
                    YokePlan& plan,
                    PlanReport& report);

// Returns ptd's context for such a plan. Collective over the world.
std::unique_ptr<Context> fsdp_context(const YokeInitArgs& args, const Settings& settings);

}  // namespace yoke::megatron_compat
