#include "core/cli/train_request.hpp"

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "core/base/exit_code.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int kMostRestarts = 1'000'000;

[[noreturn]] void refuse(const std::string& text) {
  throw Stop{kExitUsage, text};
}

std::optional<int> number_in(const std::string& text, int min, int max) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < min || value > max) return std::nullopt;
  return value;
}

std::optional<NumMachines> machine_counts(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    const auto count = count_of("--nnodes", text, "machines", 1, kMostRanks);
    if (!count) return std::nullopt;
    return NumMachines{*count, *count, false};
  }
  const auto min = number_in(text.substr(0, colon), 1, kMostRanks);
  const auto max = number_in(text.substr(colon + 1), 1, kMostRanks);
  if (!min || !max || *min > *max) {
    refuse("--nnodes " + text +
           concat(": not a least and a largest number of machines; allowed: MIN:MAX with 1 <= MIN "
                  "<= MAX <= ",
                  kMostRanks,
                  ", such as 1:2"));
  }
  return NumMachines{*min, *max, true};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::optional<int> count_of(
    const std::string& flag, const std::string& text, const std::string& what, int min, int max) {
  if (text.empty()) return std::nullopt;
  const auto value = number_in(text, min, max);
  if (!value) {
    refuse(flag + " " + text + ": not a number of " + what + concat("; allowed: ", min) +
           concat(" to ", max));
  }
  return value;
}

void read_flags(const TrainFlags& flags, Request& request) {
  request.nproc = count_of("--nproc", flags.nproc, "ranks", 1, kMostRanks);
  request.virtual_ranks = count_of("--virtual", flags.virtual_ranks, "ranks", 1, kMostRanks);
  request.nnodes = machine_counts(flags.nnodes);
  request.node_rank = count_of("--node-rank", flags.node_rank, "machines", 0, kMostRanks - 1);
  request.restarts =
      count_of("--restarts", flags.restarts, "restarts", 0, kMostRestarts).value_or(0);
}

std::optional<Machines> machines_of(const Request& request) {
  if (!request.nnodes) {
    if (request.node_rank || !request.master.empty())
      refuse("--node-rank and --master have no effect without --nnodes");
    return std::nullopt;
  }
  const std::string master = request.master.empty()
                                 ? variable("MASTER_ADDR") + ":" + variable("MASTER_PORT")
                                 : request.master;
  const size_t colon = master.rfind(':');
  Machines machines;
  machines.count = request.nnodes->max;
  machines.host = master.substr(0, colon);
  // The launchers of an elastic run meet at the next port.
  const int last_port = request.nnodes->elastic ? 65534 : 65535;
  const auto port =
      colon == std::string::npos ? std::nullopt : number_in(master.substr(colon + 1), 1, last_port);
  if (machines.host.empty() || !port) {
    refuse(
        "--nnodes needs --master HOST:PORT, or MASTER_ADDR and MASTER_PORT: the address of "
        "machine 0 and a free port there" +
        concat(" (1 to ", last_port, "); given: '", master, "'"));
  }
  machines.port = *port;
  const std::string nnodes = request.nnodes->elastic
                                 ? concat(request.nnodes->min, ":", machines.count)
                                 : concat(machines.count);
  if (!request.node_rank || *request.node_rank >= machines.count) {
    refuse(concat("--nnodes ", nnodes, " needs --node-rank, the number of this machine; ") +
           concat("allowed: 0 to ", machines.count - 1));
  }
  if (!request.nproc) refuse("--nnodes needs --nproc, the number of ranks on each machine");
  machines.index = *request.node_rank;
  const std::string job = variable("YOKE_JOB");
  // The same on all machines and after a restart, and probably another one for another run.
  machines.job = job.empty()
                     ? "yoke train " + std::filesystem::path(request.config).filename().string()
                     : "job " + job;
  return machines;
}

}  // namespace yoke
