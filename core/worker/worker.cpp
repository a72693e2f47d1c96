#include "yoke/worker.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/backend/probe.hpp"
#include "core/base/exit_code.hpp"
#include "core/conformance/check_child.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/launch/device_choice.hpp"
#include "core/launch/environment.hpp"
#include "core/metrics/run_folder.hpp"
#include "core/run/job.hpp"
#include "core/run/run_place.hpp"
#include "core/run/stop.hpp"
#include "core/train.hpp"
#include "core/worker/generate.hpp"
#include "core/worker/import_config.hpp"

namespace yoke {
namespace {

// The words after `yoke-worker`. Written by `yoke`, or by torchrun through it; not a user
// interface.
struct Arguments {
  enum Mode { kNone, kPlan, kRank, kVirtual, kEnvironment } mode = kNone;
  int32_t rank = 0;
  int32_t world_size = 0;  // 0 = the product of the given degrees
  std::string rendezvous;  // folder
  RunPlace place;
  bool terminal = false;  // what rank 0 prints ends at a terminal
  std::string config;
  std::vector<std::string> overrides;
};

int32_t number(const std::string& flag, const std::string& text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Refused(kExitUsage,
                  "yoke-worker: " + flag + " " + text + "; allowed: a number, 0 or above");
  }
  return value;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments a;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size())
        throw Refused(kExitUsage, "yoke-worker: " + word + " needs a value");
      return words[++i];
    };
    if (word == "--plan") {
      a.mode = Arguments::kPlan;
    } else if (word == "--env") {
      a.mode = Arguments::kEnvironment;
    } else if (word == "--rank") {
      a.mode = Arguments::kRank;
      a.rank = number(word, value());
    } else if (word == "--virtual") {
      a.mode = Arguments::kVirtual;
      a.world_size = number(word, value());
    } else if (word == "--world") {
      a.world_size = number(word, value());
    } else if (word == "--rendezvous") {
      a.rendezvous = value();
    } else if (word == "--run-dir") {
      a.place.dir = value();
    } else if (word == "--terminal") {
      a.terminal = true;
    } else if (word == "--resume") {
      a.place.resume = value();
    } else if (word.rfind("--", 0) == 0) {
      throw Refused(kExitUsage,
                    "yoke-worker: unknown flag " + word + "; this program is started by `yoke`");
    } else if (a.config.empty()) {
      a.config = word;
    } else {
      a.overrides.push_back(word);
    }
  }
  if (a.mode == Arguments::kNone || a.config.empty()) {
    throw Refused(kExitUsage,
                  "yoke-worker is started by `yoke train CONFIG`; it has no use of its own");
  }
  return a;
}

int print_plan(const Arguments& a, const std::map<std::string, Family>& families) {
  const Job job = make_job(a.config, a.overrides, {.world = a.world_size, .here = true}, families);
  const RunPlace place = choose_place(job);
  const YokePlan& plan = job.plan->plan();
  nlohmann::ordered_json out;
  out["world_size"] = plan.world_size;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    out["degrees"][std::string(Degrees::kAxes[axis])] = plan.degree[axis];
  }
  out["micro_batch"] = plan.micro_batch;
  out["accumulation"] = job.plan->accumulation();
  out["run_dir"] = place.dir;
  out["resume"] = place.resume;
  out["notes"] = job.notes;
  std::puts(out.dump().c_str());
  return kExitOk;
}

CommOptions comm_options(const RunConfig& run, RankDevice* device) {
  CommOptions options;
  options.check = run.comm.check == "off"    ? CommCheck::kOff
                  : run.comm.check == "full" ? CommCheck::kFull
                                             : CommCheck::kStep;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(run.comm.timeout * 1000));
  options.cancel = &cancel_flag();
  options.device = device;
  options.progress = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return options;
}

LogOptions log_options(const Arguments& a, const RunPlace& place, int32_t rank) {
  char name[32];
  std::snprintf(name, sizeof name, "/logs/rank_%03d.log", rank);
  LogOptions options;
  options.rank = rank;
  options.prefix = a.mode == Arguments::kVirtual && rank > 0;
  options.progress = a.terminal && rank == 0;
  options.file = place.dir + name;
  return options;
}

nlohmann::ordered_json backend_json(const LoadedBackend& backend) {
  return {{"name", backend.name()},
          {"version", std::string(view(backend.description().version))},
          {"path", backend.path()}};
}

void describe_run(RunFolder& folder, const Job& job) {
  folder.begin();
  folder.write("config.resolved.toml", to_toml(job.config));
  folder.write("origin.json", origins_json(job.config));
  folder.write("env.json", environment_json({{"yoke", YOKE_VERSION}, {"torch", TORCH_VERSION}}));
  auto backends = nlohmann::ordered_json::array({backend_json(job.backend)});
  for (const InnerBackends::Inner* inner : job.inner->opened())
    backends.push_back(backend_json(inner->backend));
  folder.write("backends.json", backends.dump(2) + "\n");
}

// What a failure means for the exit code of this rank.
int exit_code_of(const Error& e) {
  if (e.code() == YOKE_CANCELLED && stop_signal() != 0) return 128 + stop_signal();
  const bool lost = e.code() == YOKE_UNAVAILABLE || e.code() == YOKE_DEADLINE_EXCEEDED;
  return lost ? kExitRankLost : kExitFailed;
}

// "threads    1 per rank (2 cores, 2 local ranks)": a row of the introduction.
std::string thread_text(int local_ranks) {
  const auto count = [](int n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  const int cores = usable_cores(), threads = at::get_num_threads();
  const bool ours = threads == threads_per_rank(cores, local_ranks);
  return "threads    " + std::to_string(threads) + " per rank (" +
         (ours ? "" : "OMP_NUM_THREADS; ") + count(cores, "core") + ", " +
         count(local_ranks, "local rank") + ")";
}

// Trains, and leaves exit.json whatever happens.
int run_rank(const Job& job, const RunPlace& place, World& world, Log& log, int32_t local_ranks) {
  std::optional<RunFolder> folder;  // of rank 0
  ExitRecord end;
  Position at;
  try {
    if (world.rank() == 0) {
      describe_run(folder.emplace(place.dir), job);
      log.info(thread_text(local_ranks));
    }
    train(job, place, world, log, at);
    if (at.step < job.config.run.train.steps) {
      end.code = 128 + stop_signal();
      end.reason = "stopped by signal " + std::to_string(stop_signal());
      if (folder) log.info("stopped after step " + std::to_string(at.step));
    }
  } catch (const Error& e) {
    end.code = exit_code_of(e);
    end.reason = e.what();
    log.error(end.reason);
  } catch (const std::exception& e) {
    end.code = kExitFailed;
    end.reason = first_part(e.what());
    log.error(end.reason);
  }
  end.step = at.step;
  if (folder) folder->end(end);
  return end.code;
}

// Runs f; what escapes it is told on stderr and becomes an exit code.
template <class F>
int guarded(F&& f) {
  try {
    return f();
  } catch (const Refused& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return exit_code_of(e);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", first_part(e.what()).c_str());
    return kExitFailed;
  }
}

// A meeting place that cannot be is a fault of how the run was started.
std::unique_ptr<World> meet(const Rendezvous& rendezvous, const CommOptions& options) {
  try {
    return World::connect(rendezvous, options);
  } catch (const Error& e) {
    if (e.code() == YOKE_INVALID_ARGUMENT) throw Refused(kExitUsage, e.what());
    throw;
  }
}

// NULL on the CPU.
std::unique_ptr<RankDevice> enter_device(const Job& job, int32_t local_rank) {
  if (!job.on_cuda) return nullptr;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return std::make_unique<RankDevice>(device_of_rank(local_rank, nvidia_driver().devices, visible));
}

int run_process(const Arguments& a,
                const Rendezvous& rendezvous,
                int32_t local_rank,
                const std::map<std::string, Family>& families) {
  // All ranks of `yoke train --nproc` are here, and decide as --plan did; of another launcher's,
  // each may see a device of its own.
  const RankCount ranks{.world = rendezvous.world_size, .here = a.mode == Arguments::kRank};
  const Job job = make_job(a.config, a.overrides, ranks, families);
  const auto device = enter_device(job, local_rank);
  const auto world = meet(rendezvous, comm_options(job.config.run, device.get()));
  const RunPlace place = a.place.dir.empty() ? agree_on_place(job, *world) : a.place;
  Log log(log_options(a, place, rendezvous.rank));
  return run_rank(job, place, *world, log, rendezvous.local_world_size);
}

int run_threads(const Arguments& a, const std::map<std::string, Family>& families) {
  const Job job =
      make_job(a.config, a.overrides, {.world = a.world_size, .threads = true}, families);
  const auto virtual_world = make_virtual_world(a.world_size);
  const int threads = threads_per_rank(usable_cores(), a.world_size);
  std::vector<int> codes(a.world_size, kExitFailed);
  const auto run = [&](int32_t r) {
    at::set_num_threads(threads);
    codes[r] = guarded([&] {
      Rendezvous rendezvous;
      rendezvous.rank = r;
      rendezvous.world_size = a.world_size;
      rendezvous.virtual_world = virtual_world;
      const auto device = enter_device(job, r);
      const auto world = World::connect(rendezvous, comm_options(job.config.run, device.get()));
      Log log(log_options(a, a.place, r));
      return run_rank(job, a.place, *world, log, a.world_size);
    });
  };
  std::vector<std::thread> others;
  for (int32_t r = 1; r < a.world_size; ++r) others.emplace_back(run, r);
  run(0);  // on the main thread, which alone may start LibTorch's profiler
  for (std::thread& t : others) t.join();
  // The first cause; ranks that only lost their peer come second.
  const auto cause = std::find_if(
      codes.begin(), codes.end(), [](int c) { return c != kExitOk && c != kExitRankLost; });
  return cause != codes.end() ? *cause : *std::max_element(codes.begin(), codes.end());
}

// For `yoke doctor`.
int say_what_i_am() {
  const nlohmann::ordered_json me = {{"yoke", YOKE_VERSION},
                                     {"tag", kTorchTag},
                                     {"cpu", at::get_cpu_capability()},
                                     {"cuda", has_cuda_library()}};
  std::puts(me.dump().c_str());
  return kExitOk;
}

// A rank that `yoke` started on this machine.
Rendezvous started_here(const Arguments& a) {
  Rendezvous r;
  r.rank = a.rank;
  r.world_size = r.local_world_size = a.world_size;
  r.file_store = a.rendezvous + "/store";
  return r;
}

// A rank that another launcher started.
Rendezvous launched(const LaunchEnvironment& env) {
  const auto text = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  Rendezvous r;
  r.rank = env.rank;
  r.world_size = env.world_size;
  r.master_addr = env.master_addr;
  r.master_port = env.master_port;
  r.store_served = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  r.attempt = text("TORCHELASTIC_RESTART_COUNT");
  r.local_world_size = env.local_world_size;
  r.interface = text("GLOO_SOCKET_IFNAME");
  return r;
}

int dispatch(const std::vector<std::string>& words, const std::map<std::string, Family>& families) {
  if (!words.empty() && words[0] == "--probe") {
    if (words.size() != 2) throw Refused(kExitUsage, "yoke-worker --probe needs one path");
    return probe_main(words[1]);
  }
  if (!words.empty() && words[0] == "--check") return check_main(words);
  if (!words.empty() && words[0] == "--doctor") return say_what_i_am();
  if (!words.empty() && words[0] == "--generate") return generate({words.begin() + 1, words.end()});
  if (!words.empty() && words[0] == "--translate")
    return translate({words.begin() + 1, words.end()});

  const Arguments a = parse(words);
  if (a.mode == Arguments::kPlan) return print_plan(a, families);
  install_stop_handlers();
  if (a.mode == Arguments::kVirtual) return run_threads(a, families);
  if (a.mode == Arguments::kRank) return run_process(a, started_here(a), a.rank, families);
  const LaunchEnvironment env = launch_environment().value();
  return run_process(a, launched(env), env.local_rank, families);
}

}  // namespace

int worker_main(int argc, char** argv, const std::map<std::string, Family>& families) {
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);  // c10d prints backtraces of what we report ourselves
  c10::initLogging();                         // reads it
  setenv("KINETO_LOG_LEVEL", "99", 0);        // the profiler complains of missing GPUs
  return guarded([&] { return dispatch({argv + 1, argv + argc}, families); });
}

}  // namespace yoke
