// Slurm's notation in its variables. Pure; no LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

// "node[03-07,9],gpu1" -> "node03"; "" for "".
std::string first_host(const std::string& node_list);

// SLURM_STEP_TASKS_PER_NODE: "2(x3),1" means 2 tasks on nodes 0 to 2, 1 on node 3. 0 = not told.
int32_t tasks_on_node(const std::string& tasks_per_node, int32_t node);

// 15000 to 24999, the same for all ranks of a step.
int32_t step_port(int64_t job, int64_t step);

}  // namespace yoke
