// yoke backends check: runs the conformance checks on a backend.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace yoke {

struct CheckRequest {
  std::string backend;            // name or path
  bool deep = false;              // also run the checks that take seconds
  int nproc = 4;                  // largest number of ranks of a check
  int timeout = 60;               // seconds per check
  std::vector<std::string> only;  // ids or levels of checks; empty = all
  std::string json_file, junit;   // files for the results; "" = none
  bool list = false;
  std::string format = "text";
};

// Adds the subcommand to `backends`. Parsing the command line fills the request.
CLI::App* add_check_command(CLI::App& backends, CheckRequest& request);

// Runs the checks and prints the results. Returns the exit code: 0 if no check failed, 1 if one
// failed, if none could run, or if none ran more than one rank along a declared axis, 2 for wrong
// options. Throws Error if there is no such backend; callers exit with 3.
int check_backend(const CheckRequest& request);

}  // namespace yoke
