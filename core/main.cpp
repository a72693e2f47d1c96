// The program `yoke`: finds the command named by the first argument and passes it the other
// arguments. Does not link LibTorch.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "core/base/exit_code.hpp"
#include "core/cli/backends.hpp"
#include "core/cli/checkpoint.hpp"
#include "core/cli/compare.hpp"
#include "core/cli/config.hpp"
#include "core/cli/data.hpp"
#include "core/cli/doctor.hpp"
#include "core/cli/generate.hpp"
#include "core/cli/plan.hpp"
#include "core/cli/trace.hpp"
#include "core/cli/train.hpp"
#include "yoke/nearest.hpp"
#include "yoke/parallel_backend.h"

namespace {

using Words = std::vector<std::string>;

struct Command {
  const char* name;
  int (*run)(const Words& args);
  const char* summary;
};

constexpr Command kCommands[] = {
    {"train", yoke::train_command, "train a model as a run file describes"},
    {"plan",
     yoke::plan_command,
     "predict memory, traffic and idle time of a step, without starting ranks"},
    {"compare",
     yoke::compare_command,
     "run a job with several backends, compare results and speed"},
    {"generate", yoke::generate_command, "continue a text with a trained model"},
    {"checkpoint", yoke::checkpoint_command, "list, verify and export checkpoints"},
    {"data", yoke::data_command, "prepare and inspect files of tokens"},
    {"backends", yoke::backends_command, "list, describe, check and create parallel backends"},
    {"trace", yoke::trace_command, "join the traces of all ranks of a run into one file"},
    {"config",
     yoke::config_command,
     "show the configuration of a run, list all keys, import configs of other programs"},
    {"doctor", yoke::doctor_command, "check whether this machine has everything that a run needs"},
};

void print_help(FILE* out) {
  std::fputs("Trains a model with interchangeable parallel backends.\n\n", out);
  std::fputs("usage: yoke COMMAND ...\n\n", out);
  for (const Command& c : kCommands) std::fprintf(out, "  %-10s %s\n", c.name, c.summary);
  std::fputs("\n  yoke COMMAND --help   print the words and options of a command\n", out);
  std::fputs("  yoke --version        print the versions of yoke and of the backend contract\n",
             out);
}

int refuse(const std::string& word) {
  Words names;
  for (const Command& c : kCommands) names.emplace_back(c.name);
  const bool flag = word.starts_with('-');
  if (flag) names = {"--help", "--version"};
  std::string hint = yoke::did_you_mean(word, names);
  if (hint.empty() && flag) hint = "; other flags follow the command: yoke train CONFIG --nproc 2";
  if (!flag && word.ends_with(".toml")) hint = "; did you mean 'yoke train " + word + "'?";
  std::fprintf(stderr,
               "yoke: unknown %s '%s'; allowed: %s%s\n",
               flag ? "flag" : "command",
               word.c_str(),
               yoke::join(names).c_str(),
               hint.c_str());
  return yoke::kExitUsage;
}

int dispatch(const Words& words) {
  if (words.empty()) {
    print_help(stderr);
    return yoke::kExitUsage;
  }
  if (words[0] == "--help" || words[0] == "-h") {
    print_help(stdout);
    return yoke::kExitOk;
  }
  if (words[0] == "--version") {
    std::printf("yoke %s (backend contract %d.%d)\n", YOKE_VERSION, YOKE_ABI_MAJOR, YOKE_ABI_MINOR);
    return yoke::kExitOk;
  }
  if (words[0] == "help") {
    Words rest(words.begin() + 1, words.end());
    rest.emplace_back("--help");
    return dispatch(rest);
  }
  for (const Command& c : kCommands) {
    if (words[0] == c.name) return c.run({words.begin() + 1, words.end()});
  }
  return refuse(words[0]);
}

// Connects the standard streams that the caller has closed to /dev/null. Otherwise files that are
// opened later get their numbers, and receive what is meant for the streams.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0)
      std::_Exit(yoke::kExitFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  int code = yoke::kExitFailed;
  try {
    code = dispatch(Words(argv + 1, argv + argc));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "yoke: %s\n", e.what());
  }
  if (std::fflush(stdout) != 0 && code == yoke::kExitOk) {
    std::fputs("yoke: the output could not be written; is the disk full?\n", stderr);
    code = yoke::kExitFailed;
  }
  return code;
}
