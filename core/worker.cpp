#include "core/worker.hpp"

#include <ATen/Parallel.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/backend/probe.hpp"
#include "core/generate.hpp"
#include "core/job.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/exit_code.hpp"
#include "core/run_place.hpp"
#include "core/train.hpp"

namespace yoke {
namespace {

// The words after `yoke-worker`. Written by `yoke`, or by torchrun through it; not a user interface.
struct Arguments {
  enum Mode { kNone, kPlan, kRank, kVirtual, kEnvironment } mode = kNone;
  int32_t rank = 0;
  int32_t world_size = 0;  // 0 = the product of the given degrees
  std::string rendezvous;  // folder
  RunPlace place;
  std::string config;
  std::vector<std::string> overrides;
};

int32_t number(const std::string& flag, const std::string& text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) {
    throw Refused(kExitUsage, "yoke-worker: " + flag + " " + text + "; allowed: a number, 0 or above");
  }
  return value;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments a;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size()) throw Refused(kExitUsage, "yoke-worker: " + word + " needs a value");
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
    } else if (word == "--resume") {
      a.place.resume = value();
    } else if (word.rfind("--", 0) == 0) {
      throw Refused(kExitUsage, "yoke-worker: unknown flag " + word + "; this program is started by `yoke`");
    } else if (a.config.empty()) {
      a.config = word;
    } else {
      a.overrides.push_back(word);
    }
  }
  if (a.mode == Arguments::kNone || a.config.empty()) {
    throw Refused(kExitUsage, "yoke-worker is started by `yoke train CONFIG`; it has no use of its own");
  }
  return a;
}

int print_plan(const Arguments& a, const std::map<std::string, Family>& families) {
  const Job job = make_job(a.config, a.overrides, a.world_size, families);
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

CommOptions comm_options(const RunConfig& run) {
  CommOptions options;
  options.check = run.comm.check == "off"    ? CommCheck::kOff
                  : run.comm.check == "full" ? CommCheck::kFull
                                             : CommCheck::kStep;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(run.comm.timeout * 1000));
  options.cancel = &cancel_flag();
  return options;
}

// One rank from its configuration to the end. `console`: ranks as threads share one, so they are named.
int run_rank(const Arguments& a, const Job& job, const Rendezvous& rendezvous, StopAgreement::Board board, Log& log) {
  const auto world = CommWorld::connect(rendezvous, comm_options(job.config.run));
  RunPlace place = a.place;
  if (place.dir.empty()) place = agree_on_place(job, *world);
  if (rendezvous.rank == 0) open_place(job, place);
  StopAgreement stop(rendezvous.rank, rendezvous.world_size, std::move(board));
  const int code = train(job, place, *world, stop, log);
  if (rendezvous.rank == 0) close_place(place, code, "");
  return code;
}

int exit_code_of(int32_t code) { return code == YOKE_UNAVAILABLE ? kExitRankLost : kExitFailed; }

// Runs f; a failure goes to the log and becomes an exit code.
template <class F>
int report(Log& log, int32_t rank, const RunPlace& place, F&& f) {
  try {
    return f();
  } catch (const Refused& e) {
    log.error(e.what());
    return e.exit_code();
  } catch (const Error& e) {
    log.error(e.what());
    const bool stopped = e.code() == YOKE_CANCELLED && stop_signal() != 0;
    const int code = stopped ? 128 + stop_signal() : exit_code_of(e.code());
    if (rank == 0 && !place.dir.empty()) close_place(place, code, e.what());
    return code;
  } catch (const std::exception& e) {
    log.error(first_part(e.what()));
    return kExitFailed;
  }
}

LogOptions log_options(const RunPlace& place, int32_t rank, bool prefix) {
  LogOptions options;
  options.rank = rank;
  options.prefix = prefix && rank > 0;
  char name[32];
  std::snprintf(name, sizeof name, "/logs/rank_%03d.log", rank);
  if (!place.dir.empty()) options.file = place.dir + name;
  return options;
}

int run_process(const Arguments& a, const std::map<std::string, Family>& families, const Rendezvous& rendezvous) {
  Log log(log_options(a.place, rendezvous.rank, false));
  return report(log, rendezvous.rank, a.place, [&] {
    const Job job = make_job(a.config, a.overrides, rendezvous.world_size, families);
    return run_rank(a, job, rendezvous, process_board(rendezvous), log);
  });
}

int run_threads(const Arguments& a, const std::map<std::string, Family>& families) {
  const Job job = make_job(a.config, a.overrides, a.world_size, families);
  const auto world = make_virtual_world(a.world_size);
  const auto board = make_thread_board();
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / a.world_size);
  std::vector<int> codes(a.world_size, kExitFailed);
  std::vector<std::thread> ranks;
  for (int32_t r = 0; r < a.world_size; ++r) {
    ranks.emplace_back([&, r] {
      at::set_num_threads(threads);
      Rendezvous rendezvous;
      rendezvous.rank = r;
      rendezvous.world_size = a.world_size;
      rendezvous.virtual_world = world;
      Log log(log_options(a.place, r, true));
      codes[r] = report(log, r, a.place, [&] { return run_rank(a, job, rendezvous, board, log); });
      if (codes[r] != kExitOk && stop_signal() == 0) abort_virtual_world(*world);
    });
  }
  for (std::thread& t : ranks) t.join();
  // The first cause, not the ranks that only lost their peer.
  for (int code : codes) {
    if (code != kExitOk && code != kExitRankLost) return code;
  }
  return *std::max_element(codes.begin(), codes.end());
}

int dispatch(const std::vector<std::string>& words, const std::map<std::string, Family>& families) {
  if (!words.empty() && words[0] == "--probe") {
    if (words.size() != 2) throw Refused(kExitUsage, "yoke-worker --probe needs one path");
    return probe_main(words[1]);
  }
  if (!words.empty() && words[0] == "--generate") return generate({words.begin() + 1, words.end()});

  const Arguments a = parse(words);
  if (a.mode == Arguments::kPlan) return print_plan(a, families);
  install_stop_handlers();
  if (a.mode == Arguments::kVirtual) return run_threads(a, families);
  Rendezvous rendezvous;
  if (a.mode == Arguments::kEnvironment) {
    const TorchrunEnvironment env = *torchrun_environment();
    rendezvous.rank = env.rank;
    rendezvous.world_size = env.world_size;
    rendezvous.master_addr = env.master_addr;
    rendezvous.master_port = env.master_port;
  } else {
    rendezvous.rank = a.rank;
    rendezvous.world_size = a.world_size;
    rendezvous.file_store = a.rendezvous + "/store";
  }
  return run_process(a, families, rendezvous);
}

}  // namespace

int worker_main(int argc, char** argv, const std::map<std::string, Family>& families) {
  std::map<std::string, Family> all = builtin_families();
  all.insert(families.begin(), families.end());
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0);  // c10d prints backtraces of what we report ourselves
  try {
    return dispatch({argv + 1, argv + argc}, all);
  } catch (const Refused& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.exit_code();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", first_part(e.what()).c_str());
    return kExitFailed;
  }
}

}  // namespace yoke
