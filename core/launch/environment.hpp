// Ranks that somebody else started: the variables of torchrun, mpirun and srun. No LibTorch.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

namespace yoke {

struct LaunchEnvironment {
  std::string launcher;  // who started this rank, with rank and world size, for messages
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  std::string master_addr;  // "" and 0 in a world of one
  int32_t master_port = 0;
};

// The value of a variable; NULL = not set.
using GetVariable = std::function<const char*(const char* name)>;

// Looked for in this order; the first launcher found counts, and every other one must agree with it
// on rank and world size:
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
//   Open MPI   OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//   MPICH      PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//   srun       SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE
// Launchers may stand inside each other: torchrun itself (TORCHELASTIC_RUN_ID) in any of them, both
// mpiruns in srun; the outer one's numbers then mean something else and are not compared. A job
// step of one task is no launcher, nor is an allocation (salloc, sbatch) without srun.
//
// Ranks meet at MASTER_ADDR:MASTER_PORT; under srun they default to the first host of the step and
// a port made from the numbers of job and step.
//
// Empty if nobody started this process as a rank. Throws Error(INVALID_ARGUMENT) naming every
// missing, bad or contradicting variable with its value; callers exit with 2.
std::optional<LaunchEnvironment> launch_environment(const GetVariable& get = ::getenv);

// Processors that this process may use, at least 1.
int usable_cores();

// Threads per rank when nobody set OMP_NUM_THREADS: an equal part of the cores, at least 1.
int threads_per_rank(int cores, int local_ranks);

}  // namespace yoke
