// The worker program, which `yoke` starts. `yoke` itself does not link LibTorch, so that it starts
// in milliseconds and survives a backend that crashes. Whatever needs LibTorch or a backend runs in
// a worker, as one command per process. These commands are an interface between the two programs,
// not for users.
#include "yoke/worker.hpp"

#include <ATen/Version.h>
#include <c10/util/Logging.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/backend/backend_call.hpp"
#include "core/backend/probe.hpp"
#include "core/base/exit_code.hpp"
#include "core/conformance/check_child.hpp"
#include "core/conformance/crash_report.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/launch/environment.hpp"
#include "core/run/job_forecast.hpp"
#include "core/run/layouts.hpp"
#include "core/run/planned_config.hpp"
#include "core/run/run_table.hpp"
#include "core/run/stop.hpp"
#include "core/worker/generate.hpp"
#include "core/worker/import_config.hpp"
#include "core/worker/rank.hpp"

namespace yoke {
namespace {

using Words = std::vector<std::string>;

[[noreturn]] void refuse(const std::string& text) {
  throw Refused(kExitUsage, "yoke-worker" + text);
}

// A flag, the number of values that follow it on the command line, and the function that handles
// them.
template <class Run>
struct Flag {
  const char* name;
  size_t arity;
  Run* run;
};

// Looks up words[i] in a table and checks that its values are present.
template <class Run, size_t n>
const Flag<Run>& find_flag(const Flag<Run> (&table)[n], const Words& words, size_t i) {
  for (const Flag<Run>& flag : table) {
    if (words[i] != flag.name) continue;
    if (i + flag.arity >= words.size()) refuse(": " + words[i] + " needs a value");
    return flag;
  }
  refuse(": unknown flag " + words[i] + "; this program is started by `yoke`");
}

int32_t number(const std::string& flag, const std::string& text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    refuse(": " + flag + " " + text + "; allowed: a whole number, 0 or more");
  return value;
}

// ---- Arguments of the commands that need a run ----

struct RunArguments {
  RankArguments rank;
  int32_t world_size = 0;  // 0 = the product of the given degrees
  std::string rendezvous;  // folder in which the ranks of this machine find each other
  // Of a run on several machines: ranks on this one, where all ranks meet, and the name of the run.
  int32_t local_ranks = 0;
  std::string master, job;
  int32_t machines = 1;    // number of machines, for the plan
  std::string first_load;  // path of the backend, if it must be probed before it is loaded
};

using SetArgument = void(RunArguments& a, const std::string& value);
constexpr Flag<SetArgument> kRunFlags[] = {
    {"--world", 1, [](auto& a, auto& value) { a.world_size = number("--world", value); }},
    {"--rendezvous", 1, [](auto& a, auto& value) { a.rendezvous = value; }},
    {"--local-ranks",
     1,
     [](auto& a, auto& value) { a.local_ranks = number("--local-ranks", value); }},
    {"--machines", 1, [](auto& a, auto& value) { a.machines = number("--machines", value); }},
    {"--master", 1, [](auto& a, auto& value) { a.master = value; }},
    {"--job", 1, [](auto& a, auto& value) { a.job = value; }},
    {"--run-dir", 1, [](auto& a, auto& value) { a.rank.place.dir = value; }},
    {"--resume", 1, [](auto& a, auto& value) { a.rank.place.resume = value; }},
    {"--first-load", 1, [](auto& a, auto& value) { a.first_load = value; }},
    {"--terminal", 0, [](auto& a, auto&) { a.rank.terminal = true; }},
};

// Parses flags, the path of the run file and overrides. The path is the first word that is not a
// flag.
RunArguments parse_run(const Words& words) {
  RunArguments a;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--")) {
      const auto& flag = find_flag(kRunFlags, words, i);
      i += flag.arity;
      flag.run(a, words[i]);
    } else if (a.rank.config.empty()) {
      a.rank.config = words[i];
    } else {
      a.rank.overrides.push_back(words[i]);
    }
  }
  if (a.rank.config.empty()) refuse(" is started by `yoke train CONFIG`; it has no other use");
  return a;
}

// Parses the arguments of a question about a run, and probes its backend if nobody has.
RunArguments parse_question(const Words& words) {
  RunArguments a = parse_run(words);
  try {
    if (!a.first_load.empty()) probe_in_copy(a.first_load);
  } catch (const Error& e) {
    throw Refused(kExitPlugin, e.what());
  }
  return a;
}

// ---- Commands. `words` are those that follow the command's flag ----

int probe(const Words& words, const Families&) {
  if (words.size() != 1) refuse(" --probe needs one path");
  return probe_main(words[0]);
}

// Prints the properties of this program that `yoke doctor` reports.
int doctor(const Words&, const Families&) {
  const nlohmann::ordered_json self = {{"yoke", YOKE_VERSION},
                                       {"tag", kTorchTag},
                                       {"cpu", at::get_cpu_capability()},
                                       {"cuda", has_cuda_library()}};
  std::puts(self.dump().c_str());
  return kExitOk;
}

nlohmann::ordered_json plan_json(const Job& job) {
  const YokePlan& plan = job.plan->plan();
  nlohmann::ordered_json out;
  out["world_size"] = plan.world_size;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    out["degrees"][std::string(Degrees::kAxes[axis])] = plan.degree[axis];
  }
  out["micro_batch"] = plan.micro_batch;
  out["accumulation"] = job.plan->accumulation();
  return out;
}

int print_plan(const Words& words, const Families& families) {
  const RunArguments a = parse_question(words);
  const RankCount ranks{.world_size = a.world_size, .machines = a.machines};
  const Job job = make_job(a.rank.config, a.rank.overrides, ranks, families);
  // A run that is started again has chosen its place before.
  const bool again = !a.rank.place.dir.empty();
  if (again) check_restart(job, a.rank.place.dir);
  const RunPlace place = again ? a.rank.place : choose_place(job);
  nlohmann::ordered_json out = plan_json(job);
  out["run_dir"] = place.dir;
  out["resume"] = place.resume;
  std::puts(out.dump().c_str());
  return kExitOk;
}

// Prints what a step will take, for `yoke plan`.
int print_forecast(const Words& words, const Families& families) {
  const RunArguments a = parse_question(words);
  const Job job = make_job(a.rank.config,
                           a.rank.overrides,
                           {.world_size = a.world_size},
                           families,
                           JobPurpose::kForecast);
  const StepForecast forecast = forecast_of(job);
  nlohmann::ordered_json out;
  out["table"] = job_table(job);
  out["notes"] = job.notes;
  out["backend"] = job.backend.name();
  out["plan"] = plan_json(job);
  out["forecast"] = forecast.ranks.empty() ? nlohmann::ordered_json() : to_json(forecast);
  std::puts(out.dump().c_str());
  return kExitOk;
}

// Prints in which layouts a run is possible, for `yoke plan --layouts`.
int print_layouts(const Words& words, const Families& families) {
  const RunArguments a = parse_question(words);
  const Layouts layouts = plan_layouts(a.rank.config, a.rank.overrides, a.world_size, families);
  std::puts(to_json(layouts).dump().c_str());
  return kExitOk;
}

// Prints the configuration of a run as in its config.resolved.toml, for `yoke config show --nproc`.
// words: how it is printed, "text", "origin" or "json", and those of a run.
int print_config(const Words& words, const Families& families) {
  const RunArguments a = parse_question({words.begin() + 1, words.end()});
  const Job job = make_job(a.rank.config,
                           a.rank.overrides,
                           {.world_size = a.world_size},
                           families,
                           JobPurpose::kForecast);
  const LoadedConfig config = with_plan(job.config, job.plan->plan(), job.backend.name());
  const std::string text = words[0] == "json"     ? origins_json(config)
                           : words[0] == "origin" ? to_toml_with_origins(config)
                                                  : to_toml(config);
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Reads the variables that concern the network between machines.
void use_network(Rendezvous& r) {
  if (variable("GLOO_DEVICE_TRANSPORT").starts_with("TCP_TLS")) {
    refuse(
        ": GLOO_DEVICE_TRANSPORT = TCP_TLS is set, but has no effect in this LibTorch: nothing "
        "would be encrypted; unset it, and use an encrypted network");
  }
  r.secret = Secret::from_environment();
  r.interface = variable("GLOO_SOCKET_IFNAME");
}

// Runs one rank that `yoke train` has started.
int run_local_rank(const Words& words, const Families& families) {
  Rendezvous r;
  r.rank = number("--rank", words[0]);
  const RunArguments a = parse_run({words.begin() + 1, words.end()});
  r.world_size = r.local_world_size = a.world_size;
  install_stop_handlers();
  if (a.master.empty()) {
    r.control_socket = a.rendezvous + "/control";
    return run_process(a.rank, r, r.rank, /*machines=*/1, families);
  }
  const size_t colon = a.master.rfind(':');
  r.master_addr = a.master.substr(0, colon);
  r.master_port = number("--master", a.master.substr(colon + 1));
  r.local_world_size = std::max(1, a.local_ranks);
  r.job = a.job;
  use_network(r);
  return run_process(
      a.rank, r, r.rank % r.local_world_size, r.world_size / r.local_world_size, families);
}

// Runs one rank that another launcher started: torchrun, mpirun or srun.
int run_launched_rank(const Words& words, const Families& families) {
  const RunArguments a = parse_run(words);
  install_stop_handlers();
  const LaunchEnvironment env = launch_environment().value();
  Rendezvous r;
  r.rank = env.rank;
  r.world_size = env.world_size;
  r.master_addr = env.master_addr;
  r.master_port = env.master_port;
  r.store_served = env.store_served;
  r.attempt = variable("TORCHELASTIC_RESTART_COUNT");
  r.job = env.job;
  r.local_world_size = env.local_world_size;
  use_network(r);
  return run_process(a.rank, r, env.local_rank, /*machines=*/0, families);
}

// Runs all ranks of `yoke train --virtual N`.
int run_virtual_ranks(const Words& words, const Families& families) {
  const int32_t world_size = number("--virtual", words[0]);
  const RunArguments a = parse_run({words.begin() + 1, words.end()});
  install_stop_handlers();
  return run_threads(a.rank, world_size, families);
}

// The commands, by the first word of the command line.
using RunCommand = int(const Words& words, const Families& families);
constexpr Flag<RunCommand> kCommands[] = {
    {"--probe", 1, probe},
    {"--check", 1, [](auto& words, auto&) { return check_main(words); }},
    {"--doctor", 0, doctor},
    {"--generate", 0, [](auto& words, auto&) { return generate(words); }},
    {"--translate", 0, [](auto& words, auto&) { return import_config(words); }},
    {"--plan", 0, print_plan},
    {"--forecast", 0, print_forecast},
    {"--layouts", 0, print_layouts},
    {"--config", 1, print_config},
    {"--rank", 1, run_local_rank},
    {"--env", 0, run_launched_rank},
    {"--virtual", 1, run_virtual_ranks},
};

// Writes the first line about a crash of this thread. A signal handler calls it.
void write_crash_head(int fd) {
  const auto write_all = [fd](const char* text) {
    if (::write(fd, text, std::strlen(text)) < 0) return;
  };
  write_all("crashed");
  if (backend_call != nullptr) {
    write_all(" inside ");
    write_all(backend_call);
    write_all(" of the backend");
  }
  write_all("; innermost functions first:\n");
}

// If this process crashes, it first names the function of the backend and the innermost functions
// on the stack. A sanitizer, which handles the signals already, writes reports of its own.
void explain_crashes() {
  struct sigaction current {};
  if (::sigaction(SIGSEGV, nullptr, &current) == 0 && current.sa_handler == SIG_DFL)
    report_crashes({STDERR_FILENO, "  ", 8, write_crash_head});
}

int dispatch(const Words& words, const Families& families) {
  if (words.empty() || !words[0].starts_with("--"))
    refuse(" is started by `yoke train CONFIG`; it has no other use");
  const auto& command = find_flag(kCommands, words, 0);
  const bool explains_itself = words[0] == "--probe" || words[0] == "--check";
  if (!explains_itself) explain_crashes();
  return command.run({words.begin() + 1, words.end()}, families);
}

// Returns whether a command answers `yoke`, which prints its errors after "yoke: ". Other commands
// take the place of `yoke` or are ranks, and do so themselves.
bool is_question(const Words& words) {
  constexpr const char* kQuestions[] = {
      "--probe", "--check", "--doctor", "--plan", "--forecast", "--layouts", "--config"};
  return !words.empty() &&
         std::find(std::begin(kQuestions), std::end(kQuestions), words[0]) != std::end(kQuestions);
}

// A rank needs several connections for each peer; the usual limit of 1024 open files is for
// programs that use select(), which we do not.
void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int worker_main(int argc, char** argv, const std::map<std::string, Family>& families) {
  // c10d would print a backtrace for every error that we report ourselves. initLogging() reads the
  // variable.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);
  c10::initLogging();
  raise_open_files();
  // The profiler would warn about missing GPUs.
  setenv("KINETO_LOG_LEVEL", "99", 0);
  const Words words(argv + 1, argv + argc);
  const char* const prefix = is_question(words) ? "" : "yoke: ";
  const int code = guarded([&] { return dispatch(words, families); }, prefix);
  if ((std::fflush(stdout) == 0 && std::ferror(stdout) == 0) || code != kExitOk) return code;
  std::fprintf(stderr, "%sthe output could not be written; is the disk full?\n", prefix);
  return kExitFailed;
}

}  // namespace yoke
