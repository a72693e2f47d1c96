// Runs the real program in a temporary folder.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

// A temporary folder with a text and a run file that can be trained without changes.
class Playground {
 public:
  Playground() {
    std::string text;
    for (int i = 0; text.size() < 20000; ++i)
      text += "the cat " + std::to_string(i * i % 97) + " sat; ";
    folder_.write("text.txt", text);
    folder_.write("run.toml", R"(
parallel_backend = "serial"
run.dir = "runs/r"
model.family = "llama"
model.preset = "tiny"
model.layers = 1
data.path = "text.txt"
data.seq_len = 32
train.steps = 4
train.global_batch = 4
checkpoint.every = 2
metrics.every = 1
)");
  }

  // Runs `yoke args` in the folder. The limit only bounds a hang.
  SubprocessResult yoke(const std::vector<std::string>& args,
                        const std::vector<std::string>& variables = {}) const {
    std::vector<std::string> argv{"/usr/bin/env", "-C", folder_.path().string()};
    argv.insert(argv.end(), variables.begin(), variables.end());
    argv.push_back(program());
    argv.insert(argv.end(), args.begin(), args.end());
    SubprocessOptions options;
    options.limit = std::chrono::seconds(1200);  // a limit for hangs; a busy machine is slow
    return run_subprocess(argv, options);
  }
  static std::string program() { return std::string(std::getenv("YOKE_BIN")) + "/yoke"; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
};

}  // namespace yoke::testing
