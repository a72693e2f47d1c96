#include "core/launch/slurm.hpp"

#include <cstdio>

namespace yoke {

std::string first_host(const std::string& node_list) {
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    // Brackets contain a list of ranges. Take its first number, with leading zeros.
    const size_t end = node_list.find(']', i);
    host += node_list.substr(i + 1, node_list.find_first_of(",-]", i) - i - 1);
    if (end == std::string::npos) break;
    i = end;
  }
  return host;
}

int32_t tasks_on_node(const std::string& tasks_per_node, int32_t node) {
  for (size_t begin = 0; begin < tasks_per_node.size();) {
    int tasks = 0, nodes = 1;
    const char* part = tasks_per_node.c_str() + begin;
    if (std::sscanf(part, "%d(x%d)", &tasks, &nodes) < 1) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
    const size_t comma = tasks_per_node.find(',', begin);
    if (comma == std::string::npos) return 0;
    begin = comma + 1;
  }
  return 0;
}

int32_t step_port(int64_t job, int64_t step) {
  return static_cast<int32_t>(15000 + (job * 31 + step) % 10000);
}

}  // namespace yoke
