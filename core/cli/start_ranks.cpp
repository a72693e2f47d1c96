// A restart uses the run folder that the first attempt has chosen, and needs no new plan. On
// several machines each `yoke train` restarts its own ranks, and the ranks meet again as they did
// before. The machines do not talk to each other about it: the loss of a rank ends all ranks of the
// run with exit code 5, and an error ends them with another code. A machine that makes no further
// attempt tells the others. Only machine 0 knows the run folder, so only it notices that no step is
// saved.
#include "core/cli/start_ranks.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/base/cores.hpp"
#include "core/base/exit_code.hpp"
#include "core/base/files.hpp"
#include "core/checkpoint/checkpoint.hpp"
#include "core/control/decline.hpp"
#include "core/launch/environment.hpp"
#include "core/launch/rendezvous_folder.hpp"
#include "core/launch/signal_inbox.hpp"
#include "core/metrics/run_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Words = std::vector<std::string>;

// Returns the variable OMP_NUM_THREADS for the ranks, unless the user has set it, and prints how
// many ranks and threads will run.
std::vector<std::pair<std::string, std::string>> thread_variables(const RankStart& start) {
  const int cores = usable_cores();
  if (start.ranks > 2 * cores) {
    print_message(concat("warning: ",
                         start.ranks,
                         " ranks on ",
                         cores,
                         cores == 1 ? " core" : " cores",
                         "; the run will be slow"));
  }
  const std::string ranks = concat(start.ranks, start.ranks == 1 ? " rank, " : " ranks, ");
  const std::string each = start.ranks == 1 ? "" : " each";
  if (const char* given = std::getenv("OMP_NUM_THREADS")) {
    const bool one = std::string_view(given) == "1";
    print_message(ranks + given + (one ? " thread" : " threads") + each + " (OMP_NUM_THREADS)");
    return {};
  }
  const int threads = threads_per_rank(cores, start.ranks);
  print_message(concat(ranks, threads, threads == 1 ? " thread" : " threads", each));
  return {{"OMP_NUM_THREADS", std::to_string(threads)}};
}

// Returns the arguments by which rank `local` of this machine finds the others.
Words meeting_arguments(const RankStart& start, int local, const std::string& folder) {
  if (start.threads) return {"--virtual", concat(start.ranks)};
  if (!start.machines) {
    return {"--rank", concat(local), "--world", concat(start.ranks), "--rendezvous", folder};
  }
  const Machines& m = *start.machines;
  return {"--rank",
          concat(m.index * start.ranks + local),
          "--world",
          concat(m.count * start.ranks),
          "--local-ranks",
          concat(start.ranks),
          "--master",
          concat(m.host, ":", m.port),
          "--job",
          m.job};
}

Words run_arguments(const RankStart& start) {
  Words words;
  if (!start.run_dir.empty()) words = {"--run-dir", start.run_dir};
  if (!start.resume.empty()) words.insert(words.end(), {"--resume", start.resume});
  if (::isatty(STDOUT_FILENO) == 1) words.push_back("--terminal");
  words.insert(words.end(), start.config.begin(), start.config.end());
  return words;
}

// The ranks write exit.json. If all of them were killed, or failed earlier, the launcher writes it.
// If a signal killed the first one, only the launcher knows that, and replaces what the others
// wrote.
void leave_record(const RankStart& start, int code, const LaunchReport& report) {
  const std::string& run_dir = start.run_dir;
  std::error_code error;
  if (!std::filesystem::is_directory(run_dir, error)) return;  // no rank has created it
  try {
    // The ranks of this machine have ended, so rank 0 holds the folder only if it is on another
    // machine. Otherwise another run does, which is why the ranks have ended.
    const FolderLock lock(run_dir);
    if (!lock.held() && (!start.machines || code == kExitUsage)) return;
    ExitRecord record{code, report.cause, -1};
    if (report.cause.empty()) record.reason = "rank 0 ended without a record";
    if (report.killed) {
      record.step = last_step_in_exit_record(run_dir);
      remove_file(run_dir + "/exit.json");
    }
    leave_exit_record(run_dir, record);
  } catch (const Error& e) {
    print_message(concat("exit.json is missing: ", e.what()));
  }
}

// Returns the newest checkpoint of the run; "" = it has none that can be used.
std::pair<std::string, int64_t> newest_step(const std::string& run_dir) {
  if (run_dir.empty()) return {"", -1};
  try {
    const CheckpointInfo info = newest_checkpoint(run_dir + "/checkpoints", print_message);
    return {info.path, info.step};
  } catch (const Error&) {
    return {"", -1};
  }
}

}  // namespace

void decline(const Machines& m, int ranks, const std::string& why) noexcept {
  try {
    decline_run({.at = {"", m.host, m.port},
                 .rank = m.index * ranks,
                 .world_size = m.count * ranks,
                 .one_machine = m.count == 1,
                 .job = m.job,
                 .secret = Secret::from_environment()},
                why);
  } catch (const std::exception&) {
    // The secret came from a pipe, which can be read only once.
  }
}

void print_message(const std::string& text) {
  std::fprintf(stderr, "yoke: %s\n", text.c_str());
}

RankStarter::RankStarter(RankStart s, int restarts)
    : start(std::move(s)), variables_(thread_variables(start)), policy_(restarts) {}

int RankStarter::launch(const StopOrder& stop) {
  const RendezvousFolder folder;
  std::vector<RankCommand> commands;
  for (int local = 0; local < (start.threads ? 1 : start.ranks); ++local) {
    Words argv{start.worker};
    for (const Words& part : {meeting_arguments(start, local, folder.path()), run_arguments(start)})
      argv.insert(argv.end(), part.begin(), part.end());
    commands.push_back({argv, variables_});
  }
  // A resumed run may end before rank 0 removes the record of the process before it.
  if (!start.run_dir.empty()) remove_file(start.run_dir + "/exit.json");
  LaunchReport report;
  report.stop = stop;
  if (start.machines) {
    report.first_rank = start.machines->index * start.ranks;
    report.world_size = start.machines->count * start.ranks;
  }
  const int code = launch_ranks(commands, &report);
  signalled_ = report.signalled;
  if (!start.run_dir.empty()) leave_record(start, code, report);
  return code;
}

std::optional<std::chrono::milliseconds> RankStarter::pause_after(int exit_code) {
  // What was saved matters only after a loss, and finding it means reading a whole checkpoint.
  const bool knows = exit_code == kExitRankLost && !start.run_dir.empty();
  const int64_t step = knows ? newest_step(start.run_dir).second : -1;
  const auto pause = policy_.next(exit_code, knows ? std::optional<int64_t>(step) : std::nullopt);
  if (!pause && !policy_.reason().empty()) print_message("no further restart: " + policy_.reason());
  return pause;
}

void RankStarter::continue_from_newest() {
  const std::string newest = newest_step(start.run_dir).first;
  if (!newest.empty()) start.resume = newest;
  print_message("starting the ranks again, " + (start.run_dir.empty()  ? "as rank 0 decides"
                                                : start.resume.empty() ? "from the beginning"
                                                                       : "from " + start.resume));
}

void RankStarter::print_end(int exit_code) const {
  if (!start.run_dir.empty() && exit_code != kExitOk && exit_code != kExitSaved &&
      exit_code != kExitSigint && exit_code != kExitSigterm)
    print_message("logs of all ranks: " + start.run_dir + "/logs");
  const auto [newest, step] = newest_step(exit_code == kExitRankLost ? start.run_dir : "");
  if (!newest.empty()) {
    print_message(concat(
        "to continue after step ", step, ", run the same command with checkpoint.resume=auto"));
  }
}

namespace {

// Makes one attempt after the other. Returns the exit code of the run; `why` says why this machine
// makes no further attempt if the other machines wait for it.
int run_attempts(RankStarter& starter, std::string& why) {
  SignalInbox signals;  // keeps what arrives while no ranks run
  for (;;) {
    const int code = starter.launch();
    if (starter.signalled()) {
      // Ranks that could not follow the signal end as if one of them had been lost.
      if (code == kExitRankLost) why = "it was stopped by its user";
      return code;
    }
    const auto pause = starter.pause_after(code);
    if (!pause) {
      if (!starter.give_up_reason().empty())
        why = "its launcher gave up: " + starter.give_up_reason();
      return code;
    }
    if (const int signal = signals.next_within(*pause)) {
      print_message("no further restart: stopped by " + signal_name(signal));
      why = "it was stopped by its user";
      return signal == SIGINT ? kExitSigint : kExitSigterm;
    }
    starter.continue_from_newest();
  }
}

}  // namespace

int start_ranks(const RankStart& start, int restarts) {
  RankStarter starter(start, restarts);
  std::string why;
  const int code = run_attempts(starter, why);
  if (start.machines && !why.empty()) decline(*start.machines, start.ranks, why);
  starter.print_end(code);
  return code;
}

}  // namespace yoke
