// A rank is a process or a thread; both run the same code below. Every rank ends with
// an exit code, even after an exception, and the run folder gets an exit.json, with the last step
// and the reason why the run ended. Rank 0 writes it, or another rank if rank 0 is the one that is
// lost. `yoke` starts the ranks, waits for them and prints the first cause.
#include "core/worker/rank.hpp"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/base/content_sample.hpp"
#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/control/member.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/launch/device_choice.hpp"
#include "core/launch/device_failure.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/nvidia_driver.hpp"
#include "core/metrics/run_folder.hpp"
#include "core/run/hang_report.hpp"
#include "core/run/job_facts.hpp"
#include "core/run/stop.hpp"
#include "core/train.hpp"
#include "core/worker/rank_failure.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// ---- Before and after the training ----

NcclSettings nccl_settings(const CommConfig& comm) {
  using Policy = NcclSettings::CtaPolicy;
  return {.cta_policy = comm.nccl_cta_policy == "efficiency" ? Policy::kEfficiency
                        : comm.nccl_cta_policy == "zero"     ? Policy::kZero
                                                             : Policy::kDefault,
          .nvls_ctas = static_cast<int>(comm.nccl_nvls_ctas),
          .registers_memory = comm.nccl_register,
          .splits = comm.nccl_split};
}

CommOptions comm_options(const RunConfig& run, RankDevice* device) {
  CommOptions options;
  options.check = run.comm.check == "off"    ? CommCheck::kOff
                  : run.comm.check == "full" ? CommCheck::kFull
                                             : CommCheck::kStep;
  options.transport = run.comm.transport == "gloo"  ? CommTransport::kGloo
                      : run.comm.transport == "shm" ? CommTransport::kShm
                                                    : CommTransport::kAuto;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
  };
  options.timeout = milliseconds(run.comm.timeout);
  options.join_timeout = milliseconds(run.launch.join_timeout);
  options.lost_after = milliseconds(run.launch.lost_after);
  options.cancel = &cancel_flag();
  options.stop = &stop_flag();
  options.device = device;
  options.nccl = nccl_settings(run.comm);
  options.progress = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return options;
}

// shares_stdout: true if several ranks print to the stdout of this process.
LogOptions log_options(const RankArguments& a,
                       const RunPlace& place,
                       int32_t rank,
                       bool shares_stdout) {
  LogOptions options;
  options.rank = rank;
  options.prefix = shares_stdout && rank > 0;
  options.progress = a.terminal && rank == 0;
  options.file = place.dir + string_printf("/logs/rank_%03d.log", rank);
  return options;
}

nlohmann::ordered_json backend_json(const LoadedBackend& backend) {
  return {{"name", backend.name()},
          {"version", std::string(view(backend.description().version))},
          {"path", backend.path()}};
}

// Writes the files that a backend's options name, and the variables, as they were read. The files
// may change after the run.
void write_contents(RunFolder& folder, const LoadedBackend& backend, const OptionList& options) {
  for (const OptionList::Item& item : options.items()) {
    if (item.content.empty()) continue;
    const bool is_file = item.type == YOKE_OPTION_FILE;
    const std::string extension =
        is_file ? std::filesystem::path(item.string_value).extension().string() : ".txt";
    folder.write("options/" + backend.name() + "." + item.key + extension, item.content);
  }
}

// Writes the files of the run folder that are known before training starts.
void describe_run(RunFolder& folder, const Job& job) {
  folder.begin();
  folder.write("config.resolved.toml", to_toml(job.config));
  folder.write("origin.json", origins_json(job.config));
  folder.write("env.json", environment_json({{"yoke", YOKE_VERSION}, {"torch", TORCH_VERSION}}));
  auto backends = nlohmann::ordered_json::array({backend_json(job.backend)});
  write_contents(folder, job.backend, job.options);
  for (const InnerBackends::Inner* inner : job.inner->opened()) {
    backends.push_back(backend_json(inner->backend));
    write_contents(folder, inner->backend, inner->options);
  }
  folder.write("backends.json", backends.dump(2) + "\n");
}

// Returns a row of the run table: "threads    1 per rank (2 cores, 2 local ranks)".
std::string thread_row(int local_ranks) {
  const auto count = [](int n, const char* what) {
    return concat(n, " ", what, n == 1 ? "" : "s");
  };
  const int cores = usable_cores(), threads = at::get_num_threads();
  const bool is_default = threads == threads_per_rank(cores, local_ranks);
  return concat("threads    ", threads, " per rank (", is_default ? "" : "OMP_NUM_THREADS; ") +
         count(cores, "core") + ", " + count(local_ranks, "local rank") + ")";
}

// ---- One rank ----

void leave_record(const RunPlace& place, const ExitRecord& record, Log& log) {
  try {
    leave_exit_record(place.dir, record);
  } catch (const Error& e) {
    log.error(concat("exit.json is missing: ", e.what()));
  }
}

// Returns the exit code of the run, given that of this rank. If this rank has only lost another
// one, whose error ended the run, that is the code of the other one.
int code_of_run(int code, const World& world) {
  if (code != kExitRankLost || world.member() == nullptr) return code;
  return world.member()->exit_code_of_cause().value_or(code);
}

// A launcher that sees all ranks must be able to tell this rank from the one that failed first. A
// launcher on another machine sees this rank only. If the run ended because of an error of a rank,
// which would come again, it must not take that for a lost rank and start the run again.
int code_for_launcher(int code, const World& world, int32_t local_ranks) {
  return local_ranks == world.size() ? code : code_of_run(code, world);
}

// If the other ranks are lost while this one computes or waits for something else, it ends here. If
// the run hangs, it leaves a report about where it is.
void watch_rank(
    World& world, const RunPlace& place, Log& log, const Position& position, int32_t local_ranks) {
  if (world.member() == nullptr) return;
  const auto end = [&, local_ranks](const std::string& cause) {
    log.error(cause);
    const int code = code_of_run(kExitRankLost, world);
    leave_record(place, {code, cause, position.step, world.rank()}, log);
    std::_Exit(code_for_launcher(kExitRankLost, world, local_ranks));
  };
  const auto report = [&](const std::string& cause) {
    try {
      write_hang_report(place.dir, world, cause);
    } catch (const std::exception& e) {
      log.error(e.what());
    }
  };
  world.member()->set_duties({end, report, &report_flag()});
}

// Trains and returns the exit code. Leaves exit.json, also after a failure.
int run_rank(const Job& job, const RunPlace& place, World& world, Log& log, int32_t local_ranks) {
  std::optional<RunFolder> folder;  // rank 0 only
  ExitRecord end;
  end.rank = world.rank();
  const auto fail = [&](const Error& e) {
    end.code = exit_code_of(e);
    end.reason = explained(world, in_terms_of_user(job, world, local_ranks, e));
    log.error(end.reason);
  };
  Position position;
  watch_rank(world, place, log, position, local_ranks);
  try {
    if (world.rank() == 0) {
      describe_run(folder.emplace(place.dir), job);
      if (!folder->warning().empty()) log.info("note: " + folder->warning());
      log.info(thread_row(local_ranks));
      if (world.size() > 1) log.info("transport  " + world.transport());
    }
    const int signal = train(job, place, world, log, position);
    if (signal != 0) {
      end.code = exit_code_of_stop(signal, job.config.run.checkpoint.every > 0);
      end.reason = concat("stopped by signal ", signal);
      if (folder) log.info(concat("stopped after step ", position.step) + how_to_continue(job));
    }
    if (folder && job.config.run.checkpoint.every == 0 && job.config.run.record.states.empty())
      log.info("nothing was saved: checkpoint.every = 0");
  } catch (const Error& e) {
    fail(e);
  } catch (const std::exception& e) {
    fail(Error(YOKE_INTERNAL, first_part(e.what())));
  }
  const int code = code_for_launcher(end.code, world, local_ranks);
  end.code = code_of_run(end.code, world);
  end.step = position.step;
  // The record of rank 0 is the one that counts. The others write one if rank 0 cannot.
  if (folder || end.code != kExitOk) leave_record(place, end, log);
  if (world.member() != nullptr) world.member()->set_duties({});
  return code;
}

// Returns a device, made current on this thread. Throws Error(FAILED_PRECONDITION) if CUDA cannot
// use it.
std::unique_ptr<RankDevice> open_device(int32_t index) {
  try {
    return std::make_unique<RankDevice>(index);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    const std::string text = first_part(e.what()), device = device_name(index);
    const auto lack = memory_failure(text);
    const bool is_full = lack && lack->on_device;
    throw Error(YOKE_FAILED_PRECONDITION,
                "the device cannot be used: " +
                    (is_full ? lack->text + " (" + device +
                                   "): other programs use its memory; `nvidia-smi` lists them"
                             : explain_device_failure(text, device)));
  }
}

// Returns the device of a rank; NULL on the CPU. Throws Error: FAILED_PRECONDITION as above;
// INVALID_ARGUMENT if the device cannot do what the run requests.
std::unique_ptr<RankDevice> device_for(const Job& job, int32_t local_rank) {
  if (!job.on_cuda) return nullptr;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  auto device = open_device(device_of_rank(local_rank, nvidia_driver().devices, visible));
  const std::string missing = missing_fp8_units(job.config.run.precision.product,
                                                job.plan->plan().param_dtype,
                                                device->runtime().multiplies_fp8(device->device()),
                                                nvidia_driver().names.at(0));
  if (!missing.empty()) throw Error(YOKE_INVALID_ARGUMENT, missing);
  if (job.config.run.train.deterministic) device->runtime().use_deterministic_kernels();
  device->runtime().measure_products(job.config.run.train.tune_products);
  return device;
}

// Returns f(). If it throws, this rank cannot take part, so it notifies the other ranks, which
// would wait for it.
template <class F>
auto or_decline(const Rendezvous& rendezvous, F f) {
  try {
    return f();
  } catch (const Error& e) {
    decline(rendezvous, e.what());
    throw;
  }
}

// Returns the path of the shared library that holds this function.
std::string own_library() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(&guarded), &info);
  return info.dli_fname == nullptr ? "/proc/self/exe" : info.dli_fname;
}

// Returns what identifies the programs and the device of this rank.
Introduction versions(bool on_cuda) {
  return {{"version of Yoke", YOKE_VERSION, ""},
          {"version of LibTorch", TORCH_VERSION, ""},
          {"worker program", content_sample("/proc/self/exe"), ""},
          {"worker library", content_sample(own_library()), own_library()},
          {"device", on_cuda ? "cuda, " + nvidia_driver().names.at(0) : "cpu", ""}};
}

// Says where this rank can be reached, and whether strangers can reach the run as well.
void log_addresses(const Rendezvous& r, const World& world, Log& log) {
  if (world.member() == nullptr || r.one_machine()) return;
  const Peer& self = world.member()->peers().at(static_cast<size_t>(r.rank));
  log.debug(concat("rank ", r.rank, " of ", r.world_size, ": ", self.host, ", ", self.address));
  if (r.rank == 0 && !r.secret.given()) {
    log.info(concat("note: anyone who reaches ",
                    self.address,
                    " while ranks are missing can take part ") +
             "or stop this run; YOKE_SECRET_FILE names a secret that all ranks must know");
  }
}

// Connects to the other ranks. If the address cannot be used, the run was started wrongly, so the
// exit code is kExitUsage.
std::unique_ptr<World> connect_ranks(const Rendezvous& rendezvous, const CommOptions& options) {
  try {
    return World::connect(rendezvous, options);
  } catch (const Error& e) {
    if (e.code() == YOKE_INVALID_ARGUMENT) throw Refused(kExitUsage, e.what());
    throw;
  }
}

}  // namespace

int guarded(const std::function<int()>& body, const char* prefix) {
  const auto print = [&](const std::string& text) {
    std::fprintf(stderr, "%s%s\n", prefix, text.c_str());
  };
  try {
    return body();
  } catch (const Refused& e) {
    print(e.what());
    return e.exit_code();
  } catch (const Error& e) {
    print(e.what());
    return exit_code_of(e);
  } catch (const std::exception& e) {
    print(first_part(e.what()));
    return kExitFailed;
  }
}

int run_process(const RankArguments& a,
                const Rendezvous& rendezvous,
                int32_t local_rank,
                int32_t machines,
                const Families& families) {
  // A launcher of `yoke train` without other machines has chosen the place of the run.
  const bool all_local = !rendezvous.control_socket.empty();
  // The device must be chosen as it was for --plan. Under another launcher the number of machines
  // is unknown here, and each rank may see only its own device.
  const RankCount ranks{.world_size = rendezvous.world_size, .machines = machines};
  const Job job =
      or_decline(rendezvous, [&] { return make_job(a.config, a.overrides, ranks, families); });
  std::optional<OccupiedFolder> occupied;  // rank 0 only
  if (all_local && rendezvous.rank == 0)
    or_decline(rendezvous, [&] { occupied.emplace(a.place.dir); });
  const auto device = or_decline(rendezvous, [&] { return device_for(job, local_rank); });
  Rendezvous introduced = rendezvous;
  introduced.introduction = job_facts(job, versions(job.on_cuda));
  const auto world = connect_ranks(introduced, comm_options(job.config.run, device.get()));
  const RunPlace place = all_local ? a.place : agree_on_place(job, *world, a.place, occupied);
  require_shared_folder(place, *world, rendezvous.one_machine());
  Log log(log_options(a, place, rendezvous.rank, /*shares_stdout=*/false));
  log_addresses(rendezvous, *world, log);
  return run_rank(job, place, *world, log, rendezvous.local_world_size);
}

int run_threads(const RankArguments& a, int32_t world_size, const Families& families) {
  const Job job =
      make_job(a.config, a.overrides, {.world_size = world_size, .threads = true}, families);
  const OccupiedFolder occupied(a.place.dir);
  const auto virtual_world = make_virtual_world(world_size);
  const int threads = threads_per_rank(usable_cores(), world_size);
  std::vector<int> codes(world_size, kExitFailed);
  const auto run = [&](int32_t rank) {
    at::set_num_threads(threads);  // applies to the calling thread only
    codes[rank] = guarded([&] {
      Rendezvous rendezvous;
      rendezvous.rank = rank;
      rendezvous.world_size = world_size;
      rendezvous.virtual_world = virtual_world;
      const auto device = device_for(job, rank);
      // If an error destroys this world, its destructor wakes the other ranks, so that none waits
      // for ever.
      const auto world = World::connect(rendezvous, comm_options(job.config.run, device.get()));
      Log log(log_options(a, a.place, rank, /*shares_stdout=*/true));
      return run_rank(job, a.place, *world, log, world_size);
    });
  };
  std::vector<std::thread> others;
  for (int32_t rank = 1; rank < world_size; ++rank) others.emplace_back(run, rank);
  run(0);  // on the main thread, because only that one may start LibTorch's profiler
  for (std::thread& t : others) t.join();
  // A rank that only lost its peer is not the cause.
  const auto cause = std::find_if(
      codes.begin(), codes.end(), [](int c) { return c != kExitOk && c != kExitRankLost; });
  return cause != codes.end() ? *cause : *std::max_element(codes.begin(), codes.end());
}

}  // namespace yoke
