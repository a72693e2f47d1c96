// Variables are a poor way to learn that a launcher started us: shells keep them, launchers nest,
// and Slurm sets some of them in every allocation. The rules here are therefore strict. A launcher
// counts only if its own variables are present (present()); numbers that two launchers report must
// agree unless one is known to run inside the other (may_nest()); and all missing variables are
// reported at once, because each attempt on a cluster costs the user another wait in a queue.
// Guessing a value is not an option: a rank with a wrong number joins the wrong collective.
#include "core/launch/environment.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "core/launch/slurm.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// The names of a launcher's variables.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

// The order of the search: torchrun first, since it runs inside the others, and srun last.
enum { kTorchrun, kOpenMpi, kMpich, kSrun, kNumLaunchers };
constexpr Launcher kLaunchers[kNumLaunchers] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun of Open MPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpiexec of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

template <class T>
std::string equals(const char* name, const T& value) {
  return concat(name, " = ", value);
}

// Reads the variables and collects what is wrong with them.
class Reader {
 public:
  explicit Reader(const GetVariable& get) : get_(get) {}

  bool set(const char* name) const { return get_(name) != nullptr; }
  std::string text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? "" : value;
  }
  // Returns the number in a variable that must be set. After an error, returns `min`.
  int32_t number(const char* name, int32_t min, int32_t max = INT32_MAX) {
    if (!set(name)) {
      faults.push_back(std::string(name) + " is not set");
      return min;
    }
    const std::string given = text(name);
    int32_t value = 0;
    const auto [at, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error == std::errc() && at == given.data() + given.size() && value >= min && value <= max)
      return value;
    const std::string range = max == INT32_MAX ? concat(min, " or more") : concat(min, " to ", max);
    faults.push_back(
        concat(equals(name, "'" + given + "'"), " is not a whole number; allowed: ", range));
    return min;
  }
  // After another error the numbers are not reliable, so the comparison is skipped.
  void require_below(const char* name, int32_t value, const char* bound_name, int32_t bound) {
    if (!faults.empty() || value < bound) return;
    faults.push_back(concat(equals(name, value), " must be below ", equals(bound_name, bound)));
  }

  std::vector<std::string> faults;

 private:
  const GetVariable& get_;
};

// Returns true if this launcher started this process, directly or through an inner launcher.
bool present(int which, const Reader& env) {
  const Launcher& l = kLaunchers[which];
  switch (which) {
    case kTorchrun:
      return env.set(l.rank) || env.set(l.world_size) || env.set(l.local_rank);
    case kMpich:  // steps of srun set PMI_RANK and PMI_SIZE too, for programs linked with MPICH
      return env.set(l.rank) && (env.set(l.local_rank) || !env.set(kLaunchers[kSrun].world_size));
    case kSrun:  // salloc and sbatch set SLURM_PROCID too; their shell may be a step of one task
      return env.set(l.world_size) && env.text(l.world_size) != "1";
    default:
      return env.set(l.rank) || env.set(l.world_size);
  }
}

// Returns true if the outer launcher may have started the inner one instead of this rank.
bool may_nest(int inner, int outer, const Reader& env) {
  return inner == kTorchrun ? env.set("TORCHELASTIC_RUN_ID") : outer == kSrun;
}

LaunchEnvironment read_numbers(int which, Reader& env) {
  const Launcher& l = kLaunchers[which];
  LaunchEnvironment e;
  e.rank = env.number(l.rank, 0);
  e.world_size = env.number(l.world_size, 1);
  e.local_rank = env.number(l.local_rank, 0);
  if (which == kSrun) {
    // Slurm has no variable for the number of local ranks. It follows from the list of tasks per
    // node.
    const int32_t node = env.set("SLURM_NODEID") ? env.number("SLURM_NODEID", 0) : 0;
    const int32_t tasks = tasks_on_node(env.text(l.local_world_size), node);
    e.local_world_size = tasks > 0 ? tasks : e.world_size;
  } else {
    e.local_world_size = env.number(l.local_world_size, 1);
  }
  env.require_below(l.rank, e.rank, l.world_size, e.world_size);
  env.require_below(l.local_rank, e.local_rank, l.local_world_size, e.local_world_size);
  e.launcher =
      concat(l.name, " (", equals(l.rank, e.rank), ", ", equals(l.world_size, e.world_size), ")");
  return e;
}

// Throws if another launcher's variables are present and give a different rank or world size. One
// of the two is stale, and we cannot tell which.
void require_agreement(int chosen, const LaunchEnvironment& e, const Reader& env) {
  for (int other = chosen + 1; other < kNumLaunchers; ++other) {
    if (!present(other, env) || may_nest(chosen, other, env)) continue;
    const Launcher& o = kLaunchers[other];
    if (env.text(o.rank) == concat(e.rank) && env.text(o.world_size) == concat(e.world_size))
      continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("two launchers contradict each other: ",
                       e.launcher,
                       " and ",
                       o.name,
                       " (",
                       equals(o.rank, env.text(o.rank)),
                       ", ",
                       equals(o.world_size, env.text(o.world_size)),
                       "); unset the variables of the one that did not start this rank"));
  }
}

int64_t number_or_zero(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// srun sets no address. All ranks of a step can compute one from variables that they share.
void read_rendezvous(int which, Reader& env, LaunchEnvironment& e) {
  e.master_addr = env.text("MASTER_ADDR");
  if (which == kSrun && e.master_addr.empty()) {
    const char* step = "SLURM_STEP_NODELIST";
    const std::string host = first_host(env.text(env.set(step) ? step : "SLURM_JOB_NODELIST"));
    // On one node the loopback address needs no name resolution, which may be missing there.
    e.master_addr = e.local_world_size == e.world_size ? "127.0.0.1" : host;
  }
  if (e.master_addr.empty()) env.faults.push_back("MASTER_ADDR is not set");
  if (which == kSrun && !env.set("MASTER_PORT")) {
    e.master_port = step_port(number_or_zero(env.text("SLURM_JOB_ID")),
                              number_or_zero(env.text("SLURM_STEP_ID")));
  } else {
    e.master_port = env.number("MASTER_PORT", 1, 65535);
  }
}

// Joins the values of variables, "" if none is set.
std::string job_of(const char* name, std::initializer_list<const char*> variables, Reader& env) {
  std::string values;
  for (const char* variable : variables) {
    if (env.set(variable)) values += (values.empty() ? "" : ".") + env.text(variable);
  }
  return values.empty() ? "" : concat(name, " ", values);
}

void read_job(int which, Reader& env, LaunchEnvironment& e) {
  e.end_with_parent = which != kTorchrun || env.set("TORCHELASTIC_RUN_ID");
  e.store_served = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (env.set("YOKE_JOB")) {
    e.job = "job " + env.text("YOKE_JOB");
  } else if (which == kTorchrun) {
    e.job = job_of("torchrun's run", {"TORCHELASTIC_RUN_ID"}, env);
  } else if (which == kOpenMpi) {
    e.job = job_of("Open MPI's job", {"PMIX_NAMESPACE"}, env);
  } else if (which == kSrun) {
    e.job = job_of("Slurm's step", {"SLURM_JOB_ID", "SLURM_STEP_ID"}, env);
  }
}

[[noreturn]] void fail(int which, const std::vector<std::string>& faults) {
  std::string text =
      concat("the environment looks like that of ", kLaunchers[which].name, ", but has errors:");
  for (const std::string& fault : faults) text += "\n  " + fault;
  if (faults.back().starts_with("MASTER_")) {
    text +=
        "\n  export MASTER_ADDR=HOST MASTER_PORT=29500 for every rank: the host of rank 0 "
        "(127.0.0.1 on one machine) and a free port there";
  }
  throw Error(YOKE_INVALID_ARGUMENT,
              text + "\n  if no launcher started this rank, unset these variables and use --nproc");
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const GetVariable& get) {
  Reader env(get);
  int which = 0;
  while (which < kNumLaunchers && !present(which, env)) ++which;
  if (which == kNumLaunchers) return std::nullopt;
  LaunchEnvironment e = read_numbers(which, env);
  // A number that could not be read would look like a contradiction.
  if (env.faults.empty()) require_agreement(which, e, env);
  if (e.world_size > 1) read_rendezvous(which, env, e);
  if (!env.faults.empty()) fail(which, env.faults);
  read_job(which, env, e);
  return e;
}

}  // namespace yoke
