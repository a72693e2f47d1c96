// A private installation for one test: bin/yoke, a worker that the test writes, lib/yoke/backends.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/subprocess.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

class YokeInstall {
 public:
  YokeInstall() {
    std::filesystem::create_directories(folder_.path() / "bin");
    std::filesystem::create_directories(folder_.path() / "lib/yoke/backends");
    std::filesystem::copy_file(YOKE_PROGRAM, folder_ / "bin/yoke");
    for (const char* name : {"lib", "lib/yoke", "lib/yoke/backends"}) set_mode(name, 0755);
    // Unless the test writes a script, the worker supports only --probe.
    write_worker("echo \"unexpected: $*\" >&2; exit 1");
  }

  // Writes a worker as a shell script. --probe and --first-load, which comes last, always work;
  // `script` handles everything else.
  void write_worker(const std::string& script, const std::string& name = "bin/yoke-worker") const {
    folder_.write(
        name,
        "#!/bin/sh\n[ \"$1\" = --probe ] && exec " YOKE_PROBE_WORKER
        " \"$@\"\ncase \"$*\" in *--first-load*)\n  for path; do :; done\n  " YOKE_PROBE_WORKER
        " --first-load \"$path\" || exit ;;\nesac\n" +
            script + "\n");
    set_mode(name, 0755);
  }
  // Copies a toy backend of tests/abi to <folder>/<name>.so.
  void add_toy(const std::string& name, const std::string& folder = "lib/yoke/backends") const {
    std::filesystem::create_directories(folder_.path() / folder);
    set_mode(folder, 0755);
    const std::string file = folder + "/" + name + ".so";
    std::filesystem::copy_file(std::string(YOKE_TOYS "/") + name + ".so", folder_ / file);
    set_mode(file, 0644);
  }
  void set_mode(const std::string& name, unsigned mode) const {
    std::filesystem::permissions(folder_ / name, static_cast<std::filesystem::perms>(mode));
  }

  // Runs yoke in the folder, with a clean environment and the given variables ("NAME=value").
  SubprocessResult run(const std::vector<std::string>& args,
                       const std::vector<std::string>& variables = {}) const {
    std::vector<std::string> argv{
        "/usr/bin/env", "-i", "-C", folder_.path().string(), "PATH=/usr/bin:/bin"};
    argv.push_back("HOME=" + (folder_ / "home"));
    argv.insert(argv.end(), variables.begin(), variables.end());
    argv.push_back(folder_ / "bin/yoke");
    argv.insert(argv.end(), args.begin(), args.end());
    return run_subprocess(argv);
  }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
};

}  // namespace yoke::testing
