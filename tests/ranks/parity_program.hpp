// Runs the real program on a miniature model and reads its output, for the parity tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/plain_loop.hpp"

namespace yoke::testing {

// The line of metrics.jsonl about one step.
struct LoggedStep {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double loss_scale = 0;  // 0 = the line has none
  int64_t skipped = 0;
  int64_t tokens = 0;
  int64_t rounded = 0;  // numbers that were rounded to fp8; 0 = the line has none
  struct Traffic {
    int64_t calls = 0, bytes = 0;
    bool operator==(const Traffic&) const = default;
  };
  std::map<std::string, Traffic> comm;  // key: axis
};

struct ProgramRun {
  int exit_code = -1;
  std::string output;  // stdout and stderr, after the command
  std::string dir;     // run folder
  std::vector<LoggedStep> steps;

  std::string checkpoint(int64_t step) const;
  std::vector<double> losses() const;
  std::vector<double> grad_norms() const;
  // Returns the payload bytes of one step on the axes whose name starts with `axes`. The first step
  // is 0.
  int64_t bytes(size_t step, const std::string& axes) const;
};

// A run file for `run` over `text`, in a temporary folder that is deleted with the object.
class ParityProgram {
 public:
  // config_json: the model, instead of the Llama that `run` describes; "" = none.
  ParityProgram(const PlainRun& run,
                const std::vector<uint8_t>& text,
                const std::string& config_json = "");
  ~ParityProgram();
  ParityProgram(const ParityProgram&) = delete;
  ParityProgram& operator=(const ParityProgram&) = delete;

  // Runs `yoke train CONFIG <args>`, where args are key=value pairs or options. Every call has its
  // own run folder.
  ProgramRun train(const std::vector<std::string>& args);

 private:
  std::string folder_;
  int runs_ = 0;
};

// Returns whether this build has lib/yoke/backends/<name>.so.
bool backend_built(const std::string& name);

// Returns English-like text from a small grammar, which is easy to learn. It is always the same.
std::vector<uint8_t> parity_text(size_t size);

// Return the number of elements of all parameters, and of the parameters of the last two blocks:
// the last layer and an untied head.
int64_t num_elements(const PlainRun& run);
int64_t last_two_blocks_elements(const PlainRun& run);

// Returns all tensors of a safetensors file, as doubles.
std::map<std::string, std::vector<double>> read_safetensors(const std::string& path);
std::string read_file(const std::string& path);

}  // namespace yoke::testing
