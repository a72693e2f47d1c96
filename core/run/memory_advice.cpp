// The changes are found by asking the backend for the forecast of a changed plan, as `yoke plan`
// does, rather than by a formula: only the backend knows what it shards and keeps. Options of the
// backend are not changed, because their meaning is not known here.
#include "core/run/memory_advice.hpp"

#include <algorithm>
#include <vector>

#include "core/base/text.hpp"
#include "core/run/job_forecast.hpp"
#include "yoke/nearest.hpp"
#include "yoke/plan.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Bytes that the context of CUDA and the communicators of one rank may take together.
constexpr int64_t kOwnLibraries = int64_t{4} << 30;

// A change of the plan, and how the user asks for it.
struct Change {
  YokePlan plan;
  std::string keys;
};

// Returns the plans with smaller micro-batches, the largest first.
std::vector<Change> smaller_micro_batches(const YokePlan& plan) {
  std::vector<Change> changes;
  for (const int64_t size : divisors(plan.micro_batch)) {
    if (size == plan.micro_batch) continue;
    Change change{plan, concat("train.micro_batch=", size)};
    change.plan.micro_batch = static_cast<int32_t>(size);
    changes.insert(changes.begin(), std::move(change));
  }
  return changes;
}

// Returns the plans that shard over ranks which are replicas of each other now, those with the
// fewest shards first.
std::vector<Change> more_shards(const YokePlan& plan) {
  const int32_t replicas = plan.degree[YOKE_DP_REPLICATE], shards = plan.degree[YOKE_DP_SHARD];
  std::vector<Change> changes;
  for (const int64_t factor : divisors(replicas)) {
    if (factor == 1) continue;
    Change change{plan, ""};
    change.plan.degree[YOKE_DP_REPLICATE] = static_cast<int32_t>(replicas / factor);
    change.plan.degree[YOKE_DP_SHARD] = static_cast<int32_t>(shards * factor);
    change.keys = concat(yoke_degree_key(YOKE_DP_REPLICATE), "=", replicas / factor, " ") +
                  concat(yoke_degree_key(YOKE_DP_SHARD), "=", shards * factor);
    changes.push_back(std::move(change));
  }
  return changes;
}

// Returns "train.micro_batch=2 (61.2 GiB)" for the first change that fits; "" if none does.
std::string first_that_fits(const PeakOfPlan& peak_of,
                            const std::vector<Change>& changes,
                            int64_t room) {
  for (const Change& change : changes) {
    const int64_t peak = peak_of(change.plan);
    if (peak >= 0 && peak <= room) return change.keys + " (" + bytes_text(peak) + ")";
  }
  return "";
}

}  // namespace

std::string memory_advice(const YokePlan& plan,
                          const std::string& backend,
                          const PeakOfPlan& peak_of,
                          int64_t room) {
  const std::string options =
      "`yoke backends info " + backend + "` lists options that may save memory";
  const int64_t now = peak_of(plan);
  if (now < 0) {
    const std::string smaller =
        plan.micro_batch > 1
            ? concat("use smaller micro-batches (train.micro_batch, now ", plan.micro_batch, "); ")
            : "";
    return smaller + options;
  }
  // The allocation failed, so the forecast is too low or not all of the room is free. Either way,
  // a change must leave a margin.
  const int64_t goal = std::min(room, now) / 10 * 9;
  const std::string needs = "a step of this run is forecast to need up to " + bytes_text(now) +
                            " in a rank, whose share of the memory is " + bytes_text(room) +
                            (now > room ? "; "
                                        : ", so the forecast is too low, or another limit applies "
                                          "(a container, ulimit, other programs); ");
  std::vector<std::string> fitting;
  for (const auto& changes : {smaller_micro_batches(plan), more_shards(plan)}) {
    if (std::string found = first_that_fits(peak_of, changes, goal); !found.empty())
      fitting.push_back(std::move(found));
  }
  if (fitting.empty()) {
    return needs + "no smaller micro-batch and no larger number of shards is known to be enough; " +
           "`yoke plan CONFIG --nproc N --layouts` shows what each layout of N ranks needs; " +
           options;
  }
  return needs + "this would need less: " + join(fitting, ", or ") + "; " + options;
}

std::string memory_advice(const Job& job, int64_t room) {
  const auto peak_of = [&](const YokePlan& plan) -> int64_t {
    try {
      return forecast_of(job, plan).peak_bytes();
    } catch (const std::exception&) {  // the backend refuses this plan
      return -1;
    }
  };
  return memory_advice(job.plan->plan(), job.backend.name(), peak_of, room);
}

std::string memory_warning(int64_t needed, const DeviceMemory& memory, const std::string& device) {
  const int64_t room = memory.total_bytes - memory.other_bytes;
  const std::string others =
      memory.other_bytes <= kOwnLibraries
          ? ""
          : "other programs, or CUDA itself, use " + bytes_text(memory.other_bytes);
  if (needed > room) {
    return "a step is forecast to need at least " + bytes_text(needed) + ", but only " +
           bytes_text(room) + " are available to this rank (" + device + ")" +
           (others.empty() ? "" : ", because " + others) +
           "; if an allocation fails, the run says which changes would need less";
  }
  return others.empty() ? "" : others + " of the memory of " + device + "; nvidia-smi lists them";
}

}  // namespace yoke
