#include "core/launch/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/base/cores.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::map<std::string, std::string>;

const Variables kMaster = {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
const Variables kTorchrun = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kMpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun = {{"SLURM_PROCID", "3"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                         {"SLURM_JOB_ID", "1234"},
                         {"SLURM_STEP_ID", "2"}};
// The environment variables of a shell inside salloc or sbatch.
const Variables kAllocation = {{"SLURM_JOB_ID", "1234"},
                               {"SLURM_NTASKS", "4"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODELIST", "gpu[07-08]"}};

Variables together(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

std::optional<LaunchEnvironment> read(const Variables& variables) {
  return launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string failure(const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

std::string failure_with(const std::string& name, const char* value) {
  Variables variables = together(kTorchrun, kMaster);
  variables.erase(name);
  if (value != nullptr) variables[name] = value;
  return failure(variables);
}

TEST(LaunchEnvironment, IsTheSameFromEveryLauncher) {
  for (const Variables& launcher : {kTorchrun, kOpenMpi, kMpich, kSrun}) {
    const auto env = read(together(launcher, kMaster));
    ASSERT_TRUE(env);
    EXPECT_EQ(env->rank, 3) << env->launcher;
    EXPECT_EQ(env->world_size, 4) << env->launcher;
    EXPECT_EQ(env->local_rank, 1) << env->launcher;
    EXPECT_EQ(env->local_world_size, 2) << env->launcher;
    EXPECT_EQ(env->master_addr, "10.0.0.1") << env->launcher;
    EXPECT_EQ(env->master_port, 29500) << env->launcher;
  }
}

TEST(LaunchEnvironment, IsAbsentWhenNobodyStartedRanks) {
  EXPECT_FALSE(read({{"HOME", "/"}}));
  EXPECT_FALSE(read(kMaster));  // exported for a launcher that is started later
  EXPECT_FALSE(read(kAllocation));
  // The shell of salloc may be a step of one task.
  const Variables step = together(kAllocation, {{"SLURM_STEP_NUM_TASKS", "1"}});
  EXPECT_FALSE(read(step));
  // The plugin for PMI-2 sets these in each step.
  EXPECT_FALSE(read(together(step, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})));
}

TEST(LaunchEnvironment, NeedsNoRendezvousInAWorldOfOne) {
  const auto env = read({{"OMPI_COMM_WORLD_RANK", "0"},
                         {"OMPI_COMM_WORLD_SIZE", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  ASSERT_TRUE(env);
  EXPECT_EQ(env->world_size, 1);
}

TEST(LaunchEnvironment, FindsTheRendezvousOfAJobStepItself) {
  const auto env = read(kSrun);
  ASSERT_TRUE(env);
  EXPECT_EQ(env->master_addr, "gpu07");
  EXPECT_EQ(env->master_port, 15000 + (1234 * 31 + 2) % 10000);
  const auto one_machine =
      read(together(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "4"}, {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(one_machine->master_addr, "127.0.0.1");
}

TEST(LaunchEnvironment, PrefersTheInnerLauncher) {
  // srun -N2 torchrun --nproc-per-node 2: Slurm's numbers describe torchrun's agents.
  const Variables agents = together(kSrun, {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  Variables nested = together(together(kTorchrun, kMaster), agents);
  nested["TORCHELASTIC_RUN_ID"] = "x";
  EXPECT_EQ(read(nested)->rank, 3);
  // mpirun inside a Slurm job starts its daemons through srun.
  EXPECT_EQ(read(together(together(kOpenMpi, kMaster), agents))->rank, 3);
  // srun also sets MPICH's variables, without the local numbers.
  EXPECT_EQ(read(together(kSrun, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}))->local_rank, 1);
}

TEST(LaunchEnvironment, RefusesLaunchersThatContradictEachOther) {
  // RANK exported by hand, mpirun in use.
  const Variables both =
      together(together(kTorchrun, kMaster), together(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}));
  EXPECT_THAT(failure(both),
              AllOf(HasSubstr("torchrun (RANK = 3, WORLD_SIZE = 4)"),
                    HasSubstr("mpirun of Open MPI (OMPI_COMM_WORLD_RANK = 2, "
                              "OMPI_COMM_WORLD_SIZE = 4)"),
                    HasSubstr("unset")));
  EXPECT_THAT(failure(together(together(kTorchrun, kMaster),
                               together(kSrun, {{"SLURM_STEP_NUM_TASKS", "8"}}))),
              HasSubstr("SLURM_STEP_NUM_TASKS = 8"));
  EXPECT_EQ(read(together(together(kTorchrun, kMaster), kOpenMpi))->rank, 3);  // they agree
}

TEST(LaunchEnvironment, NamesEveryMissingVariable) {
  for (const auto& [name, value] : together(kTorchrun, kMaster)) {
    EXPECT_THAT(failure_with(name, nullptr), HasSubstr(name + " is not set"));
  }
  EXPECT_THAT(failure({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("LOCAL_RANK is not set"),
                    HasSubstr("MASTER_ADDR is not set"),
                    HasSubstr("MASTER_PORT is not set"),
                    HasSubstr("export MASTER_ADDR="),
                    HasSubstr("use --nproc")));
  EXPECT_THAT(failure(kOpenMpi),
              AllOf(HasSubstr("mpirun of Open MPI"),
                    HasSubstr("MASTER_ADDR is not set"),
                    Not(HasSubstr("OMPI_COMM_WORLD_RANK is"))));
}

TEST(LaunchEnvironment, RefusesValuesThatMakeNoSense) {
  EXPECT_THAT(failure_with("RANK", "one"), HasSubstr("RANK = 'one' is not a whole number"));
  EXPECT_THAT(failure_with("RANK", "1x"), HasSubstr("RANK = '1x'"));
  EXPECT_THAT(failure_with("RANK", ""), HasSubstr("RANK = ''"));
  EXPECT_THAT(failure_with("RANK", "-1"), HasSubstr("RANK = '-1'"));
  EXPECT_THAT(failure_with("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE = '0'"));
  EXPECT_THAT(failure_with("RANK", "4"), HasSubstr("RANK = 4 must be below WORLD_SIZE = 4"));
  EXPECT_THAT(failure_with("LOCAL_RANK", "2"),
              HasSubstr("LOCAL_RANK = 2 must be below LOCAL_WORLD_SIZE = 2"));
  EXPECT_THAT(failure_with("MASTER_PORT", "65536"), HasSubstr("MASTER_PORT = '65536'"));
  EXPECT_THAT(failure_with("MASTER_ADDR", ""), HasSubstr("MASTER_ADDR is not set"));
}

TEST(Threads, AreAnEqualPartOfTheCoresAndAtLeastOne) {
  EXPECT_EQ(threads_per_rank(8, 2), 4);
  EXPECT_EQ(threads_per_rank(8, 3), 2);
  EXPECT_EQ(threads_per_rank(2, 16), 1);
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace yoke
