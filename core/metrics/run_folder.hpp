// The folder of one run:
//
//   runs/novels/  config.resolved.toml  origin.json  env.json  backends.json  metrics.jsonl  logs/
//                 checkpoints/  exit.json (only once the run has ended)
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace yoke {

// The folder for a new run: `wanted` if it is missing or empty, else the first such sibling
// wanted-2, wanted-3, ... Only looks. FAILED_PRECONDITION if one of them is not a folder.
std::string free_run_folder(const std::string& wanted);

// The runs that were started under this name, newest (highest number) first. Only looks.
std::vector<std::string> existing_run_folders(const std::string& wanted);

// How the run ended.
struct ExitRecord {
  int32_t code = 0;  // of the process
  std::string reason;
  int64_t step = 0;  // the last whole step
};

// What the run ran on. `versions`: what the caller knows (yoke, torch, backends); the processor,
// cores, memory, kernel, compiler and time are added.
std::string environment_json(const std::map<std::string, std::string>& versions);

// Writes the files of a run, each old or new, never half. One rank only. Throws Error naming the
// path.
class RunFolder {
 public:
  explicit RunFolder(const std::string& path);  // makes it, with logs/ and checkpoints/
  const std::string& path() const { return path_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string log(int32_t rank) const;  // logs/rank_000.log
  // name: config.resolved.toml, origin.json, env.json, backends.json.
  void write(const std::string& name, const std::string& text);
  void begin();  // removes the exit.json of an earlier part of the run
  void end(const ExitRecord& record);

 private:
  std::string path_;
};

}  // namespace yoke
