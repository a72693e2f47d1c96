// yoke doctor --nodes: checks whether a run over several machines can work.
#pragma once

#include <string>

namespace yoke {

struct NodesOptions {
  std::string run_dir;  // folder that all machines share; "" = not checked
  double timeout = 30;  // seconds for which ranks wait at the start until all of them are present
  bool json = false;
};

// Runs on every process that a launcher has started. Rank 0 prints the findings to stdout; another
// rank prints only why it could not take part, to stderr. Collective. Returns, on all ranks, 0 if
// there are at most warnings and 1 if there is a problem; 2 if no launcher started this process.
int doctor_nodes(const NodesOptions& options);

}  // namespace yoke
