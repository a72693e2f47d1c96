// yoke backends check: the conformance kit as a command.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace yoke {

struct CheckRequest {
  std::string backend;  // a name, or a path
  bool deep = false;
  int nproc = 4;
  int timeout = 60;
  std::vector<std::string> only;  // ids or levels; empty = all
  std::string json_file, junit;
  bool list = false;
  std::string format = "text";
};

// The subcommand of `backends`; parsing fills the request.
CLI::App* add_check_command(CLI::App& backends, CheckRequest& request);

// Returns the exit code: 0 all checks passed, 1 one failed, 2 usage. Throws Error if there is no
// such backend; callers exit with 3.
int check_backend(const CheckRequest& request);

}  // namespace yoke
