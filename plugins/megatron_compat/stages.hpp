// How Megatron divides the layers of a model between the stages of a pipeline. No LibTorch.
#pragma once

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/settings.hpp"
#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::megatron_compat {

// Returns the pipeline of `pp` ranks. Stage number chunk * pp + rank lies on that rank; the first
// one has the embedding, and the last one the head. With one rank there is one stage. Refusals are
// added to `messages`; the result then has no stages.
mesh::Pipeline pipeline_of(const YokeModelSummary& model,
                           const Config& config,
                           const Settings& settings,
                           int pp,
                           PlanMessages& messages);

// Returns the number of layers in each stage of a layout such as "Et*3|(tt|)*2L", and whether it
// has the letters E, t and L in their order. Throws Error(INVALID_ARGUMENT) with what is wrong.
std::vector<int> layers_of_layout(std::string_view layout);

}  // namespace yoke::megatron_compat
