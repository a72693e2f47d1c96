// The changes are found by asking the backend for the forecast of a changed run, as `yoke plan`
// does, rather than by a formula: only the backend knows what it shards and keeps. Options of the
// backend are changed one at a time. What they mean is not known here, but the contract says which
// of them change the results of a run, and only the others are tried.
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

// Returns the plans with smaller micro-batches, the largest first.
std::vector<RunChange> smaller_micro_batches(const YokePlan& plan) {
  std::vector<RunChange> changes;
  for (const int64_t size : divisors(plan.micro_batch)) {
    if (size == plan.micro_batch) continue;
    RunChange change{plan, concat("train.micro_batch=", size)};
    change.plan.micro_batch = static_cast<int32_t>(size);
    changes.insert(changes.begin(), std::move(change));
  }
  return changes;
}

// Returns the plans that shard over ranks which are replicas of each other now, those with the
// fewest shards first.
std::vector<RunChange> more_shards(const YokePlan& plan) {
  const int32_t replicas = plan.degree[YOKE_DP_REPLICATE], shards = plan.degree[YOKE_DP_SHARD];
  std::vector<RunChange> changes;
  for (const int64_t factor : divisors(replicas)) {
    if (factor == 1) continue;
    RunChange change{plan, ""};
    change.plan.degree[YOKE_DP_REPLICATE] = static_cast<int32_t>(replicas / factor);
    change.plan.degree[YOKE_DP_SHARD] = static_cast<int32_t>(shards * factor);
    change.keys = concat(yoke_degree_key(YOKE_DP_REPLICATE), "=", replicas / factor, " ") +
                  concat(yoke_degree_key(YOKE_DP_SHARD), "=", shards * factor);
    changes.push_back(std::move(change));
  }
  return changes;
}

// Returns "train.micro_batch=2 (61.2 GiB)" for the first change that fits; "" if none does.
std::string first_that_fits(const PeakOfChange& peak_of,
                            const std::vector<RunChange>& changes,
                            int64_t room) {
  for (const RunChange& change : changes) {
    const int64_t peak = peak_of(change);
    if (peak >= 0 && peak <= room) return change.keys + " (" + bytes_text(peak) + ")";
  }
  return "";
}

bool changes_results(const YokeOptionInfo& option) {
  return YOKE_HAS(YokeOptionInfo, &option, effects) &&
         (option.effects & YOKE_OPTION_CHANGES_NUMBERS) != 0;
}

// Returns the options of the backend after a change.
OptionList options_after(const OptionList& options, const RunChange& change) {
  std::vector<OptionList::Item> items = options.items();
  for (OptionList::Item& item : items) {
    if (change.option && item.key == change.option->key) item = *change.option;
  }
  return OptionList(std::move(items));
}

}  // namespace

std::vector<std::vector<RunChange>> other_values(const YokeDescription& backend,
                                                 const OptionList& options,
                                                 const YokePlan& plan) {
  std::vector<std::vector<RunChange>> all;
  const std::vector<OptionInfo> infos = option_infos(backend);
  for (size_t i = 0; i < infos.size(); ++i) {
    if (changes_results(*backend.options[i])) continue;
    OptionList::Item other = options.items().at(i);
    const OptionList::Item now = other;
    other.given = true;
    other.unset = false;
    std::vector<RunChange> changes;
    const auto add = [&](const std::string& value) {
      changes.push_back({plan, concat(view(backend.name), ".", other.key, "=", value), other});
    };
    if (now.type == YOKE_OPTION_BOOL) {
      other.int_value = now.int_value == 0 ? 1 : 0;
      add(now.int_value == 0 ? "true" : "false");
    }
    for (const std::string& choice : infos[i].choices) {
      if (now.type != YOKE_OPTION_STRING || choice == now.string_value) continue;
      other.string_value = choice;
      add(choice);
    }
    if (!changes.empty()) all.push_back(std::move(changes));
  }
  return all;
}

std::string memory_advice(const YokePlan& plan,
                          const std::string& backend,
                          const std::vector<std::vector<RunChange>>& options,
                          const PeakOfChange& peak_of,
                          int64_t room) {
  const std::string list =
      "`yoke backends info " + backend + "` lists options that may save memory";
  const int64_t now = peak_of({plan, ""});
  if (now < 0) {
    const std::string smaller =
        plan.micro_batch > 1
            ? concat("use smaller micro-batches (train.micro_batch, now ", plan.micro_batch, "); ")
            : "";
    return smaller + list;
  }
  // The allocation failed, so the forecast is too low or not all of the room is free. Either way,
  // a change must leave a margin.
  const int64_t goal = std::min(room, now) / 10 * 9;
  const std::string needs = "a step of this run is forecast to need up to " + bytes_text(now) +
                            " in a rank, whose share of the memory is " + bytes_text(room) +
                            (now > room ? "; "
                                        : ", so the forecast is too low, or another limit applies "
                                          "(a container, ulimit, other programs); ");
  std::vector<std::vector<RunChange>> groups{smaller_micro_batches(plan), more_shards(plan)};
  groups.insert(groups.end(), options.begin(), options.end());
  std::vector<std::string> fitting;
  for (const auto& changes : groups) {
    if (std::string found = first_that_fits(peak_of, changes, goal); !found.empty())
      fitting.push_back(std::move(found));
  }
  if (fitting.empty()) {
    return needs + "no smaller micro-batch, larger number of shards or other value of an option " +
           "is known to be enough; " +
           "`yoke plan CONFIG --nproc N --layouts` shows what each layout of N ranks needs; " +
           list;
  }
  return needs + "this would need less: " + join(fitting, ", or ") + "; " + list;
}

std::string memory_advice(const Job& job, int64_t room) {
  const auto peak_of = [&](const RunChange& change) -> int64_t {
    try {
      return forecast_of(job, change.plan, options_after(job.options, change)).peak_bytes();
    } catch (const std::exception&) {  // the backend refuses this change
      return -1;
    }
  };
  const YokePlan& plan = job.plan->plan();
  const auto options = other_values(job.backend.description(), job.options, plan);
  return memory_advice(plan, job.backend.name(), options, peak_of, room);
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
