// Chooses the degrees.
//
// Degrees are taken from three sources, in this order: the sizes of parallelism_config, the
// distributed type (with num_machines for hybrid strategies), and the degrees of the run file. The
// run file may repeat a degree of the config, but not change it. The remaining ranks are then
// assigned to one axis, unless its degree is already set: to shards under FSDP, else to replicas.
//
// Accelerate refuses some combinations that make sense. They work here, with a note that Accelerate
// would refuse them.
#include "plugins/accelerate_compat/strategy.hpp"

#include <algorithm>
#include <optional>

#include "plugins/accelerate_compat/fp8.hpp"
#include "yoke/nearest.hpp"
#include "yoke/plan.h"
#include "yoke/text.hpp"

namespace yoke::accelerate_compat {
namespace {

constexpr const char* kType = "distributed_type";
constexpr const char* kUseFsdp = "ACCELERATE_USE_FSDP";
constexpr const char* kVersion = "fsdp_config.fsdp_version";
constexpr const char* kProcesses = "num_processes";
constexpr const char* kMachines = "num_machines";
constexpr const char* kExchange = "parallelism_config.parallelism_config_cp_comm_strategy";

constexpr int64_t kMaxRanks = 1 << 14;  // limit of a degree
constexpr const char* kTypes = "NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED";

// A size of parallelism_config.
struct Size {
  int axis;
  const char* name;  // name of its key
  const char* word;  // name in messages that show the product
};
constexpr Size kSizes[] = {
    {YOKE_DP_REPLICATE, "parallelism_config.parallelism_config_dp_replicate_size", "dp_replicate"},
    {YOKE_DP_SHARD, "parallelism_config.parallelism_config_dp_shard_size", "dp_shard"},
    {YOKE_CP, "parallelism_config.parallelism_config_cp_size", "cp"},
    {YOKE_TP, "parallelism_config.parallelism_config_tp_size", "tp"}};

class Chooser {
 public:
  Chooser(const AccelerateConfig& config, const YokePlan& plan, PlanMessages& messages)
      : config_(config), plan_(plan), messages_(messages) {}

  Strategy choose();

 private:
  // The kind of run that distributed_type requests. kOpen: none, so the degrees of the run decide.
  enum Kind { kOpen, kSingle, kReplicas, kFsdp };

  Kind read_kind();
  void read_sizes();
  void check_combination(Kind kind);
  void read_cp_exchange();
  void read_fp8_gather();
  void resolve_degrees(Kind kind);
  void resolve_without_sizes(Kind kind);
  void apply_run_degrees();
  void fill(int axis);
  void check_data_ranks(Kind kind);
  void check_world();

  bool any_size() const;
  int64_t product() const;
  // Returns the name of the key that chooses the kind.
  const char* kind_key() const { return config_.is_given(kType) ? kType : kUseFsdp; }
  int32_t& degree(int axis) { return strategy_.degree[axis]; }
  void set_option(const char* key, std::string value, std::string_view from) {
    strategy_.options.push_back({key, std::move(value), config_.label(from), config_.shown(from)});
  }
  void refuse(std::string_view name, std::string allowed, std::string hint) {
    messages_.push_back(
        {config_.label(name), config_.shown(name), std::move(allowed), std::move(hint)});
  }
  void note(std::string_view name, std::string hint) {
    messages_.push_back({config_.label(name), config_.shown(name), "", std::move(hint), true});
  }

  const AccelerateConfig& config_;
  const YokePlan& plan_;
  PlanMessages& messages_;
  Strategy strategy_;
  Fsdp fsdp_;
};

Strategy Chooser::choose() {
  const Kind kind = read_kind();
  read_sizes();
  check_combination(kind);
  if (kind == kFsdp) {
    fsdp_ = read_fsdp(config_, plan_.param_dtype, messages_);
    strategy_.options = fsdp_.options;
  } else {
    refuse_fsdp(config_, messages_);
  }
  read_cp_exchange();
  resolve_degrees(kind);
  read_fp8_gather();
  check_world();
  const bool beyond_ddp = degree(YOKE_DP_SHARD) > 1 || degree(YOKE_CP) > 1 || degree(YOKE_TP) > 1 ||
                          degree(YOKE_PP) > 1;
  if (kind == kFsdp || beyond_ddp) strategy_.engine = Strategy::kSharded;
  return std::move(strategy_);
}

Chooser::Kind Chooser::read_kind() {
  const auto type = config_.string(kType);
  if (!type) return config_.boolean(kUseFsdp).value_or(false) ? kFsdp : kOpen;
  if (*type == "NO") return kSingle;
  if (*type == "MULTI_CPU" || *type == "MULTI_GPU") return kReplicas;
  if (*type == "FSDP") return kFsdp;
  const std::vector<std::string> known = {"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"};
  refuse(kType, kTypes, "no other type is supported" + did_you_mean(*type, known));
  return kOpen;
}

// ---- ParallelismConfig ----

void Chooser::read_sizes() {
  for (const Size& size : kSizes) {
    const auto value = config_.integer(size.name);
    if (!value) continue;
    if (*value < 1 || *value > kMaxRanks) {
      refuse(size.name, "1 to " + std::to_string(kMaxRanks), "1 leaves the axis unused");
      continue;
    }
    degree(size.axis) = static_cast<int32_t>(*value);
    strategy_.from[size.axis] = size.name;
  }
}

// PyTorch's alltoall passes keys and values around a ring, from neighbour to neighbour. It is
// therefore the "ring" of ptd.
void Chooser::read_cp_exchange() {
  const auto exchange = config_.string(kExchange);
  if (!exchange) return;
  if (*exchange != "ALLGATHER" && *exchange != "ALLTOALL")
    return refuse(kExchange, "allgather, alltoall", "Accelerate has no other strategy");
  const char* value = *exchange == "ALLGATHER" ? "all_gather" : "ring";
  set_option("cp_attention", value, kExchange);
}

// A key that has no effect here has none in Accelerate either, except with tp.
void Chooser::read_fp8_gather() {
  if (!wants_fp8_gather(config_)) return;
  if (degree(YOKE_DP_SHARD) * degree(YOKE_CP) == 1) {
    note(kFp8Gather, "no effect: nothing is sharded");
  } else if (degree(YOKE_TP) > 1) {
    note(kFp8Gather, "no effect with tp: parameters are gathered in bf16, which changes no result");
  } else {
    set_option("fp8_gather", "true", kFp8Gather);
  }
}

bool Chooser::any_size() const {
  return std::any_of(std::begin(kSizes), std::end(kSizes), [&](const Size& size) {
    return strategy_.degree[size.axis] > 1;
  });
}

int64_t Chooser::product() const {
  return yoke_degree_product(strategy_.degree.data());
}

// Applies Accelerate's rules: refuses what cannot work, notes what only Accelerate refuses.
void Chooser::check_combination(Kind kind) {
  if (!any_size()) return;
  const auto size_name = [&](int axis) { return std::string(strategy_.from[axis]); };
  if (kind == kSingle) {
    refuse(
        kType, "FSDP, MULTI_CPU, MULTI_GPU", "NO means one rank; parallelism_config requests more");
  } else if (kind == kReplicas && degree(YOKE_DP_SHARD) > 1) {
    refuse(size_name(YOKE_DP_SHARD), "1", "shards need distributed_type: FSDP and fsdp_version: 2");
  } else if (kind == kFsdp && config_.integer(kVersion).value_or(1) == 1) {
    refuse(kVersion, "2", "parallelism_config needs version 2, as in Accelerate");
  }
  for (const int axis : {YOKE_TP, YOKE_CP}) {
    if (degree(axis) <= 1 || (kind != kReplicas && degree(YOKE_DP_SHARD) > 1)) continue;
    if (kind == kReplicas) {
      note(size_name(axis),
           "Accelerate requires distributed_type FSDP for it; here it works without");
    } else if (degree(YOKE_DP_REPLICATE) > 1) {
      note(size_name(axis), "Accelerate refuses it with replicas but no shards; here it works");
    }
  }
}

// ---- Degrees ----

void Chooser::resolve_degrees(Kind kind) {
  const bool sized = any_size();
  if (sized) {
    for (int32_t& each : strategy_.degree) each = std::max(each, 1);
  } else {
    resolve_without_sizes(kind);
  }
  apply_run_degrees();
  fill(kind == kFsdp && fsdp_.shards ? YOKE_DP_SHARD : YOKE_DP_REPLICATE);
  for (int32_t& each : strategy_.degree) each = std::max(each, 1);
  if (!sized) check_data_ranks(kind);
}

// Sets the degrees that follow from the type alone; 0 leaves a degree open. Sizes of data ranks
// that are all 1 mean the same as no sizes. Only a hybrid strategy has both shards and replicas.
void Chooser::resolve_without_sizes(Kind kind) {
  for (const int axis : {YOKE_DP_REPLICATE, YOKE_DP_SHARD}) degree(axis) = 0;
  if (kind == kSingle) {
    for (int32_t& each : strategy_.degree) each = 1;
  } else if (kind == kReplicas || (kind == kFsdp && !fsdp_.shards)) {
    degree(YOKE_DP_SHARD) = 1;
  } else if (kind == kFsdp && !fsdp_.hybrid) {
    degree(YOKE_DP_REPLICATE) = 1;
  }
  const int64_t machines = config_.integer(kMachines).value_or(1);
  if (kind != kFsdp || !fsdp_.hybrid || machines < 2) return;
  degree(YOKE_DP_REPLICATE) = static_cast<int32_t>(std::min(machines, kMaxRanks));
  strategy_.from[YOKE_DP_REPLICATE] = kMachines;
}

// Refuses degrees of the run that leave no rank for what the type requests: shards under FSDP, else
// replicas. The ranks of context parallelism hold shards as well.
void Chooser::check_data_ranks(Kind kind) {
  if (kind != kReplicas && kind != kFsdp) return;
  const bool sharded = kind == kFsdp && fsdp_.shards;
  const int64_t ranks = sharded ? int64_t{degree(YOKE_DP_SHARD)} * degree(YOKE_CP)
                                : int64_t{degree(YOKE_DP_REPLICATE)};
  if (ranks > 1) return;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (axis == YOKE_PP || plan_.degree[axis] <= 1 || plan_.degree[axis] != degree(axis)) continue;
    messages_.push_back({yoke_degree_key(axis),
                         std::to_string(plan_.degree[axis]),
                         "a smaller degree, or unset",
                         concat(config_.label(kind_key()),
                                " = ",
                                config_.shown(kind_key()),
                                " requests ",
                                sharded ? "shards" : "replicas",
                                ", but no ranks are left for them; change one of them")});
  }
}

// Applies the degrees that the run sets, and refuses those that contradict the config.
void Chooser::apply_run_degrees() {
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    const int32_t run = plan_.degree[axis];
    if (run == 0 || run == degree(axis)) continue;
    if (degree(axis) == 0) {
      degree(axis) = run;
      continue;
    }
    const std::string_view from = strategy_.from[axis].empty() ? kind_key() : strategy_.from[axis];
    messages_.push_back({yoke_degree_key(axis),
                         std::to_string(run),
                         std::to_string(degree(axis)) + " or unset",
                         config_.label(from) + " = " + config_.shown(from) +
                             " requires otherwise; change one of them"});
  }
}

// Assigns the remaining ranks to an axis, unless its degree is already set.
void Chooser::fill(int axis) {
  const auto processes = config_.integer(kProcesses);
  std::string_view& from = strategy_.from[axis];
  if (from.empty()) from = processes ? kProcesses : kType;
  if (degree(axis) > 0) return;
  const int64_t world = std::clamp<int64_t>(processes.value_or(plan_.world_size), 1, kMaxRanks);
  degree(axis) = static_cast<int32_t>(std::max<int64_t>(1, world / product()));
}

void Chooser::check_world() {
  const int64_t world = plan_.world_size;
  const auto processes = config_.integer(kProcesses);
  if (processes && *processes != world) {
    const std::string wanted = config_.shown(kProcesses);
    refuse(kProcesses,
           std::to_string(world),
           "the run has " + std::to_string(world) + " rank(s); start " + wanted + " (--nproc " +
               wanted + ") or change num_processes");
  } else if (any_size() && product() != world) {
    std::string arithmetic;
    std::string_view last;
    for (const Size& size : kSizes) {
      arithmetic += (arithmetic.empty() ? "" : " x ") + std::string(size.word) + " " +
                    std::to_string(degree(size.axis));
      if (degree(size.axis) > 1 && strategy_.from[size.axis] == size.name) last = size.name;
    }
    const std::string text = std::to_string(product());
    if (last.empty()) return;  // only degrees of the run are involved: the host reports that
    refuse(last,
           "sizes whose product is the number of ranks",
           arithmetic + " = " + text + ", but the run has " + std::to_string(world) +
               " rank(s); start " + text + " (--nproc " + text + ")");
  }
}

}  // namespace

Strategy choose_strategy(const AccelerateConfig& config,
                         const YokePlan& plan,
                         PlanMessages& messages) {
  return Chooser(config, plan, messages).choose();
}

}  // namespace yoke::accelerate_compat
