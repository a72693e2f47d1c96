// The folder of one run:
//
//   runs/novels/
//     config.resolved.toml   every key with its value
//     origin.json            where each value was set
//     env.json               machine, compiler and versions
//     backends.json          the backend, and the backends that it loaded
//     options/               files and variables that the options of these backends name
//     metrics.jsonl          one line per logged step
//     logs/                  one file per rank
//     checkpoints/           see core/checkpoint
//     exit.json              how the run ended; absent while it runs
//     .lock                  locked while a run writes here; see core/run/run_place.hpp
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace yoke {

// Returns the folder for a new run: the first of wanted, wanted-2, wanted-3, ... that is missing or
// empty. Creates nothing. Throws Error (FAILED_PRECONDITION) if one of them exists and is not a
// folder.
std::string free_run_folder(const std::string& wanted);

// Returns the folders of runs that were started under this name, newest (highest number) first.
// Throws the same errors as free_run_folder().
std::vector<std::string> existing_run_folders(const std::string& wanted);

// ExitRecord describes how the run ended.
struct ExitRecord {
  int32_t code = 0;    // exit code of the process
  std::string reason;  // why the run ended early; "" = it finished
  int64_t step = 0;    // last complete step; -1 = unknown
  int32_t rank = -1;   // rank that wrote the record; -1 = the launcher
};

// Writes exit.json into a run folder unless it is there already: after a failure every rank has the
// first cause, and any of them may be the one that can still write it. Throws Error.
void leave_exit_record(const std::string& run_dir, const ExitRecord& record);

// Returns the last complete step according to exit.json; -1 = unknown, or there is no such file.
int64_t last_step_in_exit_record(const std::string& run_dir);

// Returns the path of the report that a rank writes if the run hangs, and the paths of those that
// exist, ordered by rank.
std::string hang_report(const std::string& run_dir, int32_t rank);
std::vector<std::string> hang_reports(const std::string& run_dir);

// Returns a JSON object that describes the environment of a run: `versions`, given by the caller
// (yoke, torch, backends), and the processor, cores, memory, kernel, compiler and time.
std::string environment_json(const std::map<std::string, std::string>& versions);

// RunFolder writes the files of a run. Each file is replaced atomically: a reader sees the old or
// the new one. Only one rank may use it. The methods throw Error with the path.
class RunFolder {
 public:
  // Creates the folder, with logs/ and checkpoints/, and makes its path durable: a checkpoint that
  // is later reported as saved must not be lost together with its parent folder.
  explicit RunFolder(const std::string& path);
  const std::string& path() const { return path_; }
  // Returns a sentence that says why a power failure may still lose the folder; "" = it cannot.
  const std::string& warning() const { return warning_; }
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string metrics() const { return path_ + "/metrics.jsonl"; }
  std::string log(int32_t rank) const;  // path of logs/rank_000.log
  // Writes the file `name`, such as "config.resolved.toml" or "options/pipeline.csv".
  void write(const std::string& name, const std::string& text);
  // Removes exit.json and the reports of hangs, which describe an earlier attempt of the run.
  void begin();

 private:
  std::string path_;
  std::string warning_;
};

}  // namespace yoke
