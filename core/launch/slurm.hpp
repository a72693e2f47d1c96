// Parses the values of Slurm's variables. Pure functions; no LibTorch.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

// Returns the first host of a node list: "node03" for "node[03-07,9],gpu1", "" for "".
std::string first_host(const std::string& node_list);

// Returns the number of tasks on a node, from SLURM_STEP_TASKS_PER_NODE: "2(x3),1" means 2 tasks on
// each of the nodes 0 to 2, and 1 on node 3. Returns 0 if the text does not cover the node.
int32_t tasks_on_node(const std::string& tasks_per_node, int32_t node);

// Returns a port from 15000 to 24999, the same for all ranks of a step. These lie below the range
// from which Linux assigns ports by itself.
int32_t step_port(int64_t job, int64_t step);

}  // namespace yoke
