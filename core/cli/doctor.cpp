// yoke doctor: runs all checks of core/launch/machine_check, starts the worker once and probes
// every backend, then prints one line per finding. Only a finding that stops every run, a problem,
// changes the exit code.
#include "core/cli/doctor.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/backend/probe.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/subprocess.hpp"
#include "core/cli/command.hpp"
#include "core/cli/doctor_nodes.hpp"
#include "core/cli/finding_table.hpp"
#include "core/cli/hang_summary.hpp"
#include "core/cli/worker_program.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/machine_check.hpp"
#include "core/launch/nvidia_driver.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::chrono::seconds kWorkerLimit{60};  // against hangs; starting takes about a second

constexpr const char* kRebuild =
    "scripts/setup && cmake --preset release && cmake --build --preset release";

struct Worker {
  std::string path;  // "" = not found
  bool cuda = false;
};

// Starts the worker once. This fails if LibTorch has a problem.
MachineFinding check_worker(Worker& worker) {
  const std::string what = "LibTorch";
  try {
    worker.path = find_worker("");
  } catch (const Error& e) {
    return {what, MachineFinding::kProblem, e.what(), ""};
  }
  const auto begin = std::chrono::steady_clock::now();
  const SubprocessResult r = run_subprocess({worker.path, "--doctor"}, {.limit = kWorkerLimit});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const Json answer = Json::parse(r.out, nullptr, false);
  if (!r.ending.ok() || !answer.is_object()) {
    const std::string how = r.timed_out ? "does not answer" : "ended with " + ending_text(r.ending);
    return {what, MachineFinding::kProblem, worker.path + " " + how + ": " + r.err, kRebuild};
  }
  worker.cuda = answer.value("cuda", false);
  return {what,
          MachineFinding::kOk,
          concat(answer.value("tag", ""),
                 ", ",
                 answer.value("cpu", ""),
                 string_printf(", a worker starts in %.2f s", seconds.count())),
          ""};
}

MachineFinding check_backends(const std::string& worker) {
  if (worker.empty())
    return {"backends", MachineFinding::kProblem, "not checked, because no worker was found", ""};
  std::string usable, broken;
  for (const Candidate& c : list_candidates(search_dirs(SearchSettings::current()))) {
    if (!c.shadowed_by.empty()) continue;
    try {
      if (!c.problem.empty()) throw Error(YOKE_FAILED_PRECONDITION, c.path + ": " + c.problem);
      probe_backend(worker, c.path);
      usable += (usable.empty() ? "" : ", ") + c.name;
    } catch (const Error& e) {
      broken += std::string("; ") + e.what();
    }
  }
  if (usable.empty())
    return {"backends",
            MachineFinding::kProblem,
            "none can be used" + broken,
            "yoke backends path; yoke backends list"};
  if (!broken.empty())
    return {"backends", MachineFinding::kWarning, usable + broken, "yoke backends list"};
  return {"backends", MachineFinding::kOk, usable, ""};
}

// If a launcher's variables are set, `yoke train` runs as one rank of that launcher and starts no
// others.
MachineFinding check_launcher_variables(const GetVariable& get) {
  const std::string what = "launcher", fix = "unset its variables, unless it started this shell";
  try {
    const auto env = launch_environment(get);
    if (!env) return {what, MachineFinding::kOk, "none, so yoke train starts its own ranks", ""};
    return {what,
            MachineFinding::kWarning,
            env->launcher + ", so yoke train would run as one of its ranks",
            fix};
  } catch (const Error& e) {
    return {what, MachineFinding::kWarning, e.what(), fix};
  }
}

MachineFinding check_device(bool has_cuda) {
  const NvidiaDriver& driver = nvidia_driver();
  const std::string built =
      has_cuda ? "" : "; this Yoke was built without CUDA and cannot use them";
  const std::string found = driver.devices == 0
                                ? "cpu; " + driver.problem
                                : concat(driver.devices, " x ", driver.names.at(0), built);
  const bool unused = driver.devices > 0 && !has_cuda;
  return {"device",
          unused || driver.is_faulty ? MachineFinding::kWarning : MachineFinding::kOk,
          found,
          unused             ? "scripts/setup --cuda, then build with YOKE_CUDA=ON"
          : driver.is_faulty ? driver.fix
                             : ""};
}

std::vector<MachineFinding> examine() {
  const GetVariable get = ::getenv;
  Worker worker;
  const MachineFinding libtorch = check_worker(worker);
  return {libtorch,
          check_backends(worker.path),
          check_device(worker.cuda),
          check_cores(get),
          check_memory(),
          check_shared_memory(),
          check_transport(),
          check_disk(std::filesystem::current_path().string()),
          check_open_files(),
          check_rendezvous_folder(),
          check_loopback(),
          check_host_name(get),
          check_rendezvous_address(get),
          check_launcher_variables(get),
          check_clock(),
          check_compiler("c++")};
}

// Prints how a run ended, and what its ranks have reported if it hung.
int explain_run(const std::string& run_dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(run_dir + "/logs", error)) {
    std::fprintf(stderr, "yoke: %s is not the folder of a run\n", run_dir.c_str());
    return kExitUsage;
  }
  std::ifstream in(run_dir + "/exit.json");
  const Json exit = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (exit.is_object()) {
    const std::string reason = exit.value("reason", "");
    std::printf("the run ended with exit code %d after step %d%s%s\n",
                exit.value("code", -1),
                exit.value("step", -1),
                reason.empty() ? "" : ": ",
                reason.c_str());
  } else {
    std::puts("the run has not ended, or its last process was killed");
  }
  const std::string summary = hang_summary(run_dir);
  std::puts(summary.empty() ? "no rank has reported that it hung" : summary.c_str());
  return kExitOk;
}

}  // namespace

int doctor_command(const std::vector<std::string>& args) {
  CLI::App app(
      "Checks whether this machine has everything that a run needs, and prints how to fix what is "
      "missing. With a run folder, says instead why that run has ended or hung. With --nodes, "
      "checks "
      "instead whether a run over several machines can work: start it as one process per machine "
      "or "
      "per rank, as you would start yoke train (srun yoke doctor --nodes, mpirun, torchrun "
      "--no-python). Rank 0 prints the result, and all ranks exit with 0, or with 1 if there is a "
      "problem. Under torchrun it uses the port after MASTER_PORT, which torchrun needs itself.",
      "yoke doctor");
  bool json = false, nodes = false;
  std::string run_dir;
  NodesOptions options;
  app.add_option("RUN", run_dir, "folder of a run, such as runs/novels");
  app.add_flag("--json", json, "print JSON");
  CLI::Option* flag =
      app.add_flag("--nodes", nodes, "check the machines that a launcher started this on")
          ->excludes("RUN");
  app.add_option("--run-dir", options.run_dir, "with --nodes: a folder that all machines share")
      ->needs(flag);
  app.add_option("--timeout", options.timeout, "with --nodes: seconds to wait for all ranks")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86400.0))
      ->needs(flag);
  return run_command(app, args, [&]() -> int {
    if (nodes) {
      options.json = json;
      return doctor_nodes(options);
    }
    if (!run_dir.empty()) return explain_run(run_dir);
    const std::vector<MachineFinding> findings = examine();
    print_findings(findings, json);
    return exit_code_of(findings);
  });
}

}  // namespace yoke
