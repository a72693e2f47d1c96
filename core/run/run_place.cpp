// The run folder and the checkpoint are chosen before any rank exists, because both can be wrong:
// the checkpoint may belong to a different model, or the configuration of the run may have changed.
// `yoke train` chooses in `yoke-worker --plan` and passes the result to all ranks.
// Under another launcher, rank 0 chooses and sends the result, or its error, to the other ranks.
#include "core/run/run_place.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "core/base/exit_code.hpp"
#include "core/base/network.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/control/member.hpp"
#include "core/metrics/run_folder.hpp"
#include "core/run/checkpointing.hpp"
#include "core/run/resume_check.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

void warn(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}

// Returns the checkpoint `path`. Throws if the run cannot start from it.
CheckpointInfo require_usable(const Job& job, const std::string& path) {
  const CheckpointReader reader(path);
  reader.check_model(shapes_in_files(job, make_model(job)->summary()));
  reader.hf_config_json();  // read only to verify its checksum
  if (reader.info().step >= job.config.run.train.steps) {
    throw Refused(kExitUsage,
                  concat(path, " is a checkpoint of step ", reader.info().step) +
                      concat(", and train.steps = ", job.config.run.train.steps) +
                      ": no steps are left; raise train.steps");
  }
  return reader.info();
}

// Returns the folder of the newest run named run_dir and its newest checkpoint; if there is no such
// run, a new folder.
RunPlace continue_newest(const Job& job) {
  const std::string& wanted = job.config.run.run_dir;
  const std::vector<std::string> runs = existing_run_folders(wanted);
  if (runs.empty()) {
    warn("checkpoint.resume = \"auto\": there is no run " + wanted + " yet; starting a new run");
    return {wanted, ""};
  }
  CheckpointInfo newest;
  try {
    newest = newest_checkpoint(runs.front() + "/checkpoints", warn);
  } catch (const Error& e) {
    // Silently starting a new run would hide the loss of the old one.
    if (e.code() == YOKE_DATA_LOSS) {
      throw Refused(kExitFailed,
                    concat("checkpoint.resume = \"auto\": ", e.what()) +
                        " (see above); start a new run with checkpoint.resume=never, or with "
                        "another run.dir");
    }
    if (e.code() != YOKE_NOT_FOUND) throw;
    warn(runs.front() + " has no checkpoint to resume from; starting a new run");
    return {free_run_folder(wanted), ""};
  }
  require_same_run(job, runs.front(), newest, "checkpoint.resume = \"auto\"");
  if (newest.finished && newest.step >= job.config.run.train.steps) {
    // A scheduler may start a run again that has lost a rank after its last save. The ranks then
    // make no step and end as those of a complete run.
    warn(
        concat("checkpoint.resume = \"auto\": ", runs.front(), " is finished (step ", newest.step) +
        concat(" of ", job.config.run.train.steps, "), and nothing is left to do; ") +
        "raise train.steps, or start a new run with checkpoint.resume=never");
    return {runs.front(), newest.path};
  }
  require_usable(job, newest.path);
  return {runs.front(), newest.path};
}

}  // namespace

void check_restart(const Job& job, const std::string& run_dir) {
  CheckpointInfo newest;
  try {
    newest = newest_checkpoint(run_dir + "/checkpoints", [](const std::string&) {});
  } catch (const Error&) {
    return;  // the run starts from its beginning
  }
  require_same_run(job, run_dir, newest, "the run cannot be started again");
}

RunPlace choose_place(const Job& job) {
  const RunConfig& run = job.config.run;
  try {
    if (run.checkpoint.resume == "never") return {free_run_folder(run.run_dir), ""};
    if (run.checkpoint.resume == "auto") return continue_newest(job);
    note_changes(job, require_usable(job, run.checkpoint.resume));
    return {free_run_folder(run.run_dir), run.checkpoint.resume};
  } catch (const Refused&) {
    throw;
  } catch (const Error& e) {
    const bool missing = e.code() == YOKE_NOT_FOUND;
    throw Refused(e.code() == YOKE_DATA_LOSS ? kExitFailed : kExitUsage,
                  concat(e.what(), missing ? "; checkpoint.resume is never, auto or a path" : ""));
  }
}

// The lock file names its holder: "node1, process 4711".
OccupiedFolder::OccupiedFolder(const std::string& run_dir) : run_dir_(run_dir) {
  constexpr int kMostSeconds = 120;
  make_folders(run_dir);
  const std::string path = run_dir + "/.lock", here = own_host() + ", process ";
  std::string holder;
  for (int second = 0; second <= kMostSeconds; ++second) {
    lock_ = std::make_unique<FolderLock>(run_dir);
    if (lock_->held()) {
      std::ofstream(path) << here << ::getpid();
      if (!lock_->exclusive())
        warn("note: the file system of " + run_dir +
             " has no locks; two runs in this folder would not notice each other");
      return;
    }
    std::ifstream in(path);
    std::getline(in, holder);
    if (holder.empty() || holder.rfind(here, 0) == 0) break;  // the holder is certainly alive
    if (second == 0)
      warn(run_dir + " is locked by " + holder +
           "; waiting for at most two minutes, in case that machine has crashed");
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  throw Refused(kExitUsage,
                "run.dir = " + run_dir + ": another run is writing to this folder (" +
                    (holder.empty() ? "unknown" : holder) +
                    "); wait until it has ended, or name another folder");
}

// A lock file stays in a folder that is used: if it were removed, a process that has opened it
// already and one that makes a new file could both hold a lock.
OccupiedFolder::~OccupiedFolder() {
  std::error_code error;
  const std::filesystem::path folder(run_dir_);
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    if (entry->path().filename() != ".lock") return;
  std::filesystem::remove(folder / ".lock", error);
  std::filesystem::remove(folder, error);
}

RunPlace agree_on_place(const Job& job,
                        World& world,
                        const RunPlace& given,
                        std::optional<OccupiedFolder>& occupied) {
  std::string answer;  // "0\n<dir>\n<resume>", or "<exit code>\n<refusal>"
  if (world.rank() == 0) {
    try {
      const RunPlace place = given.dir.empty() ? choose_place(job) : given;
      occupied.emplace(place.dir);
      answer = "0\n" + place.dir + "\n" + place.resume;
    } catch (const Refused& e) {
      answer = concat(e.exit_code(), "\n", e.what());
    } catch (const Error& e) {
      answer = concat(kExitFailed, "\n", e.what());
    }
  }
  // Rank 0 may have read whole checkpoints, or waited for another run.
  world.await_all("rank 0 to choose the run folder");
  answer = world.from_rank0("run place", answer);
  const size_t first = answer.find('\n');
  const int code = std::stoi(answer.substr(0, first));
  if (code != kExitOk) throw Refused(code, answer.substr(first + 1));
  const size_t second = answer.find('\n', first + 1);
  return {answer.substr(first + 1, second - first - 1), answer.substr(second + 1)};
}

void require_shared_folder(const RunPlace& place, World& world, bool one_machine) {
  if (world.size() == 1 || one_machine) return;
  const std::string mark =
      world.from_rank0("mark of the run folder", concat(".shared-", ::getpid()));
  const std::string path = place.dir + "/" + mark;
  const std::string who = concat("rank ", world.rank(), " (", own_host(), ")");
  std::string fault;
  try {
    if (world.rank() == 0) {
      make_folders(place.dir);
      replace_text(path, who + "\n");
    }
  } catch (const Error& e) {
    fault = who + ": " + e.what();
  }
  world.gather_texts("");  // rank 0 has written
  if (world.rank() != 0) {
    if (!exists_soon(path)) {
      fault = who + " does not see it";
    } else if (::access(place.dir.c_str(), W_OK) != 0) {
      fault = who + " may not write to it";
    }
  }
  const std::vector<std::string> faults = world.gather_texts(fault);
  if (world.rank() == 0) remove_file(path);
  for (const std::string& f : faults) {
    if (f.empty()) continue;
    throw Refused(kExitUsage,
                  "run.dir = " + place.dir + ": the ranks do not share this folder: " + f +
                      "; name a folder on a file system that all machines share");
  }
}

}  // namespace yoke
