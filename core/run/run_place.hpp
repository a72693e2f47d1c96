// Chooses the folder to which a run writes and the checkpoint from which it starts.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/base/files.hpp"
#include "core/comm/world.hpp"
#include "core/run/job.hpp"

namespace yoke {

struct RunPlace {
  std::string dir;     // run folder
  std::string resume;  // checkpoint to start from; "" = initial values
};

// Chooses according to the key checkpoint.resume:
//   "never"  a new folder: run.dir, or a numbered sibling of it
//   "auto"   the folder of the newest run of that name, which continues from its newest checkpoint.
//            Steps must be left. The training data and the model must be the same, and the
//            configuration may differ only in layout, backend, metrics and other keys marked kFree,
//            and, with a warning, in steps and learning rate
//   a path   a new folder; the run starts from that checkpoint. A warning lists what has changed
// Reads files but creates none. Throws Refused.
RunPlace choose_place(const Job& job);

// Throws Refused if the run in a folder has a checkpoint and is another one than the job. Called
// when a run is started again: on fewer machines, a key may have another value if it comes from the
// config of another program and depends on the number of ranks.
void check_restart(const Job& job, const std::string& run_dir);

// Keeps other runs out of a run folder until it is destroyed or the process dies.
class OccupiedFolder {
 public:
  // Creates the folder if it is missing. Throws Refused if another run is in it. If that run is on
  // another machine, it may be gone, because file servers notice late that a machine has crashed;
  // then waits for at most two minutes before it throws.
  explicit OccupiedFolder(const std::string& run_dir);
  // Removes the folder if nothing was written to it.
  ~OccupiedFolder();
  OccupiedFolder(const OccupiedFolder&) = delete;
  OccupiedFolder& operator=(const OccupiedFolder&) = delete;

 private:
  std::string run_dir_;
  std::unique_ptr<FolderLock> lock_;
};

// Returns the place of rank 0 on every rank: `given`, or what it chooses if that is empty. Rank 0
// occupies the folder; `occupied` stays empty on the others. Collective. If rank 0 throws Refused,
// every rank throws it.
RunPlace agree_on_place(const Job& job,
                        World& world,
                        const RunPlace& given,
                        std::optional<OccupiedFolder>& occupied);

// Throws Refused on every rank unless all of them see the run folder that rank 0 creates here:
// machines without a shared file system would train until the first checkpoint and then lose
// everything. Collective; returns at once if all ranks are on one machine.
void require_shared_folder(const RunPlace& place, World& world, bool one_machine);

}  // namespace yoke
