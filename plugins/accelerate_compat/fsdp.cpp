// fsdp_config in terms of ptd.
//
// Version 1 names strategies, version 2 has a boolean reshard_after_forward. Both come down to
// three facts: is anything sharded, are there several replicas of the shards, and are parameters
// freed after the forward? Which ranks become shards or replicas is decided in strategy.cpp.
#include "plugins/accelerate_compat/fsdp.hpp"

#include <algorithm>

#include "yoke/nearest.hpp"
#include "yoke/tensor.hpp"

namespace yoke::accelerate_compat {
namespace {

constexpr const char* kVersion = "fsdp_config.fsdp_version";
constexpr const char* kStrategy = "fsdp_config.fsdp_sharding_strategy";
constexpr const char* kReshard = "fsdp_config.fsdp_reshard_after_forward";
constexpr const char* kRecompute = "fsdp_config.fsdp_activation_checkpointing";
constexpr const char* kWrap = "fsdp_config.fsdp_auto_wrap_policy";
constexpr const char* kMinParams = "fsdp_config.fsdp_min_num_params";
constexpr const char* kStateDict = "fsdp_config.fsdp_state_dict_type";
constexpr const char* kForwardPrefetch = "fsdp_config.fsdp_forward_prefetch";

// The strategies of version 1. A config may also give the number of a strategy, counted from 1.
struct Strategy1 {
  const char* name;
  bool shards, reshards, hybrid;
};
constexpr Strategy1 kStrategies[] = {{"FULL_SHARD", true, true, false},
                                     {"SHARD_GRAD_OP", true, false, false},
                                     {"NO_SHARD", false, true, false},
                                     {"HYBRID_SHARD", true, true, true},
                                     {"HYBRID_SHARD_ZERO2", true, false, true}};

class Reader {
 public:
  Reader(const AccelerateConfig& config, int32_t param_dtype, PlanMessages& messages)
      : config_(config), param_dtype_(param_dtype), messages_(messages) {}

  Fsdp read();

 private:
  void read_version_1();
  void read_version_2();
  const Strategy1& strategy_in(std::string_view name);
  const Strategy1& agreed_strategy();
  void read_wrap_policy();
  void set_option(const char* key, std::string value, std::string_view from) {
    fsdp_.options.push_back({key, std::move(value), config_.label(from), config_.shown(from)});
  }
  void refuse(std::string_view name, std::string allowed, std::string hint) {
    messages_.push_back(
        {config_.label(name), config_.shown(name), std::move(allowed), std::move(hint)});
  }

  const AccelerateConfig& config_;
  const int32_t param_dtype_;
  PlanMessages& messages_;
  Fsdp fsdp_;
};

Fsdp Reader::read() {
  // Accelerate reads a config without a version as version 1.
  const int64_t version = config_.integer(kVersion).value_or(1);
  if (version == 1) {
    read_version_1();
  } else if (version == 2) {
    read_version_2();
  } else {
    refuse(kVersion, "1, 2", "FSDP has no other version");
  }
  if (const auto recompute = config_.boolean(kRecompute))
    set_option("activation_checkpoint", *recompute ? "full" : "none", kRecompute);
  const std::string state_dict = config_.string(kStateDict).value_or("SHARDED_STATE_DICT");
  if (state_dict != "SHARDED_STATE_DICT" && state_dict != "FULL_STATE_DICT")
    refuse(
        kStateDict, "SHARDED_STATE_DICT, FULL_STATE_DICT", "both write the same checkpoint here");
  read_wrap_policy();
  return std::move(fsdp_);
}

void Reader::read_version_1() {
  const Strategy1& strategy = agreed_strategy();
  fsdp_.shards = strategy.shards;
  fsdp_.hybrid = strategy.hybrid;
  // The option is set only if the user gave a key for it, and carries the name of that key, so that
  // a refusal by the inner backend names what the user wrote. Otherwise its default applies.
  for (const char* name : {kStrategy, kReshard}) {
    if (!config_.is_given(name)) continue;
    return set_option("reshard_after_forward", strategy.reshards ? "true" : "false", name);
  }
}

void Reader::read_version_2() {
  // For a name of version 1, such as FULL_SHARD, the key is given but is not a boolean.
  if (const auto reshard = config_.boolean(kReshard)) {
    set_option("reshard_after_forward", *reshard ? "true" : "false", kReshard);
  } else if (config_.is_given(kReshard)) {
    refuse(kReshard, "true, false", "version 2 has no named strategies, as in Accelerate");
  }
  if (config_.string(kStrategy).value_or("FULL_SHARD") != "FULL_SHARD")
    refuse(kStrategy, "unset", "version 2 has fsdp_reshard_after_forward: true | false instead");
  if (config_.boolean(kForwardPrefetch).value_or(false))
    refuse(kForwardPrefetch, "false", "version 2 has no forward prefetch, as in Accelerate");
}

const Strategy1& Reader::strategy_in(std::string_view name) {
  const std::string word = config_.string(name).value_or("FULL_SHARD");
  std::vector<std::string> known;
  for (const Strategy1& strategy : kStrategies) {
    known.emplace_back(strategy.name);
    if (word == strategy.name || word == std::to_string(known.size())) return strategy;
  }
  refuse(name, join(known), "these are the strategies of version 1" + did_you_mean(word, known));
  return kStrategies[0];
}

// fsdp_sharding_strategy and fsdp_reshard_after_forward may both name the strategy. If they name
// different ones, Accelerate silently takes the first key; here this is refused.
const Strategy1& Reader::agreed_strategy() {
  const bool named = config_.is_given(kStrategy);
  const auto reshard = config_.string(kReshard);
  // `accelerate launch` sets fsdp_reshard_after_forward to true for every version, so true does not
  // name a strategy.
  if (!reshard || (named && *reshard == "TRUE")) return strategy_in(kStrategy);
  const Strategy1& other = strategy_in(kReshard);
  if (!named) return other;
  const Strategy1& first = strategy_in(kStrategy);
  if (&first != &other) {
    refuse(kReshard,
           first.name,
           config_.label(kStrategy) + " = " + config_.shown(kStrategy) +
               ", which Accelerate would silently take; remove one of them");
  }
  return first;
}

void Reader::read_wrap_policy() {
  const auto policy = config_.string(kWrap);
  if (!policy || *policy == "TRANSFORMER_BASED_WRAP") return;
  if (*policy == "NO_WRAP") {
    set_option("unit_bytes", "1000000000000", kWrap);  // larger than any model
  } else if (*policy == "SIZE_BASED_WRAP") {
    const int64_t least = config_.integer(kMinParams).value_or(100'000'000);
    if (least < 1 || least > 100'000'000'000)
      return refuse(kMinParams, "1 to 100000000000", "it is the number of parameters of a unit");
    set_option("unit_bytes", std::to_string(least * item_size(param_dtype_)), kWrap);
  } else {
    refuse(kWrap,
           "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP, NO_WRAP",
           "Accelerate has no other policy");
  }
}

}  // namespace

Fsdp read_fsdp(const AccelerateConfig& config, int32_t param_dtype, PlanMessages& messages) {
  return Reader(config, param_dtype, messages).read();
}

// A variable may be left over from another run in the same shell, so it is only noted. A key of the
// file was written for this run and is refused.
void refuse_fsdp(const AccelerateConfig& config, PlanMessages& messages) {
  for (const Key& key : keys()) {
    if (!key.path.starts_with("fsdp_config.") || !config.is_given(key.path)) continue;
    const std::string label = config.label(key.path), shown = config.shown(key.path);
    if (label == key.variable) {
      messages.push_back({label, shown, "", "no effect without ACCELERATE_USE_FSDP=true", true});
    } else {
      messages.push_back(
          {label, shown, "unset", "fsdp_config has an effect only with distributed_type: FSDP"});
    }
  }
}

}  // namespace yoke::accelerate_compat
