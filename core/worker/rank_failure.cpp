// A library reports an error in its own terms, and to the rank that called it. What the user needs
// is the first cause in the whole run, what it means for the run, and what to do.
#include "core/worker/rank_failure.hpp"

#include "core/base/exit_code.hpp"
#include "core/base/text.hpp"
#include "core/control/member.hpp"
#include "core/cuda/rank_device.hpp"
#include "core/launch/device_failure.hpp"
#include "core/launch/nvidia_driver.hpp"
#include "core/metrics/memory.hpp"
#include "core/run/memory_advice.hpp"
#include "core/run/stop.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns what a user can do about an allocation that has failed.
std::string advice(const Job& job, const RankDevice* device, bool on_device, int32_t local_ranks) {
  if (on_device && device != nullptr) {
    const DeviceMemory memory = device->memory();
    return memory_advice(job, memory.total_bytes - memory.other_bytes);
  }
  const int64_t machine = total_memory_bytes();
  if (device == nullptr) return memory_advice(job, machine / local_ranks);
  return "this is memory of the machine, not of the GPU: it has " + bytes_text(machine) +
         " in all; end other programs, or start fewer ranks on this machine";
}

std::string text_for_user(const Job& job,
                          const RankDevice* device,
                          int32_t local_ranks,
                          const std::string& text) {
  if (const auto lack = memory_failure(text))
    return lack->text + "; " + advice(job, device, lack->on_device, local_ranks);
  const std::string name = device == nullptr ? "" : device_name(device->device().index());
  return explain_device_failure(text, name, how_to_continue(job));
}

}  // namespace

int exit_code_of(const Error& e) {
  if (e.code() == YOKE_CANCELLED && stop_signal() != 0)
    return exit_code_of_stop(stop_signal(), /*saved=*/false);
  const bool lost = e.code() == YOKE_UNAVAILABLE || e.code() == YOKE_DEADLINE_EXCEEDED;
  return lost ? kExitRankLost : kExitFailed;
}

std::string how_to_continue(const Job& job) {
  return job.config.run.checkpoint.every > 0
             ? "; to continue, run the same command with checkpoint.resume=auto"
             : "";
}

Error in_terms_of_user(const Job& job, const World& world, int32_t local_ranks, const Error& e) {
  const bool of_another = e.rank() >= 0 && e.rank() != world.rank();
  if (of_another || exit_code_of(e) == kExitRankLost) return e;
  try {
    const std::string text = text_for_user(job, world.device(), local_ranks, e.what());
    return Error(e.code(), text, e.rank(), e.step());
  } catch (const std::exception&) {  // the device or the memory is in too bad a state
    return e;
  }
}

std::string explained(World& world, const Error& e) {
  if (world.member() == nullptr) return e.what();
  const std::string text = e.what();
  const auto kind = e.code() == YOKE_DEADLINE_EXCEEDED ? Member::Failure::kTimeout
                    : exit_code_of(e) == kExitRankLost ? Member::Failure::kLost
                                                       : Member::Failure::kOwn;
  const std::string cause = world.member()->report_failure(text, kind, exit_code_of(e));
  if (kind == Member::Failure::kOwn && e.rank() >= 0) {  // it may be the error of another rank
    const Peer& failed = world.member()->peers().at(static_cast<size_t>(e.rank()));
    return concat("rank ", e.rank(), " (", failed.host, ", process ", failed.process, "): ", text);
  }
  const bool told = cause.empty() || text.find(cause) != std::string::npos;
  return told ? text : cause + "; this rank: " + text;
}

}  // namespace yoke
