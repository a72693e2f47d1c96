// Reads the variables of torchrun, mpirun and srun, which start each rank as a process. No
// LibTorch.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace yoke {

// Rank and world size of this process in a run that another launcher started.
struct LaunchEnvironment {
  std::string launcher;  // name of the launcher with rank and world size, for messages
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  std::string master_addr;  // "" in a world of one rank
  int32_t master_port = 0;  // 0 in a world of one rank
  // Name of the job, the same on all ranks and after a restart, and another one for every other
  // job: YOKE_JOB, or what the launcher provides; "" = unknown.
  std::string job;
  bool store_served = false;     // torchrun's agent listens at master_addr and master_port
  bool end_with_parent = false;  // the parent of this process is the launcher, not a shell
};

// Returns the value of a variable; NULL = not set.
using GetVariable = std::function<const char*(const char* name)>;

// Looks for the variables of these launchers, in this order. The first launcher found is used, and
// every other one that is found must agree with it on rank and world size:
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
//   Open MPI   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//   MPICH      PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//   srun       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE
// One launcher may run inside another: torchrun (TORCHELASTIC_RUN_ID) inside any other, and the
// mpirun of Open MPI or MPICH inside srun. The outer launcher's variables then describe the
// processes that it started itself, not the ranks, and are not compared. A job step of one task
// does not count as a launcher, nor does an allocation (salloc, sbatch) without srun.
//
// Ranks connect to MASTER_ADDR:MASTER_PORT. Under srun the defaults are the first host of the step
// and a port computed from the job and step numbers.
//
// Returns nothing if no launcher started this process. Throws an Error(INVALID_ARGUMENT) that names
// every missing, malformed or contradictory variable with its value; callers exit with 2.
std::optional<LaunchEnvironment> launch_environment(const GetVariable& get = ::getenv);

}  // namespace yoke
