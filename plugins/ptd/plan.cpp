#include "plugins/ptd/plan.hpp"

#include <string>

#include "yoke/tensor.hpp"

namespace yoke::ptd {
namespace {

struct Axis {
  int index;
  const char* key;
};
constexpr Axis kNotBuilt[] = {
    {YOKE_PP, "pp_degree"}, {YOKE_CP, "cp_degree"}, {YOKE_TP, "tp_degree"}};

// True if every axis that is not built yet is left alone.
bool check_axes(YokePlan& plan, Refusals& refusals) {
  bool fine = true;
  for (const Axis& axis : kNotBuilt) {
    int32_t& degree = plan.degree[axis.index];
    if (degree == 0) degree = 1;
    if (degree == 1) continue;
    refusals.refuse(axis.key,
                    std::to_string(degree),
                    "1",
                    std::string(axis.key) + " > 1 is not built yet; use dp_shards and dp_degree");
    fine = false;
  }
  return fine;
}

// How many ranks the degrees must make up, as the user sees it.
std::string arithmetic(const YokePlan& plan) {
  const int32_t replicas = plan.degree[YOKE_DP_REPLICATE], shards = plan.degree[YOKE_DP_SHARD];
  return "dp_degree " + std::to_string(replicas) + " x dp_shards " + std::to_string(shards) +
         " = " + std::to_string(int64_t{replicas} * shards) + ", but the run has " +
         std::to_string(plan.world_size) + " rank(s)";
}

void fill_degrees(YokePlan& plan, Refusals& refusals) {
  int32_t& replicas = plan.degree[YOKE_DP_REPLICATE];
  int32_t& shards = plan.degree[YOKE_DP_SHARD];
  const std::string world = std::to_string(plan.world_size);
  if (shards == 0) {
    if (replicas == 0) replicas = 1;
    if (plan.world_size % replicas != 0) {
      refusals.refuse("dp_degree",
                      std::to_string(replicas),
                      "a divisor of the " + world + " ranks",
                      "what is left of the world goes into dp_shards");
      return;
    }
    shards = plan.world_size / replicas;
    return;
  }
  if (replicas == 0) replicas = 1;
  if (int64_t{replicas} * shards == plan.world_size) return;
  refusals.refuse("dp_shards",
                  std::to_string(shards),
                  "degrees whose product is the number of ranks",
                  arithmetic(plan) + "; start " + std::to_string(int64_t{replicas} * shards) +
                      " ranks, or leave dp_shards unset");
}

bool is_known(int32_t dtype) {
  return dtype == YOKE_BF16 || dtype == YOKE_F32 || dtype == YOKE_F64;
}

void check_precision(YokePlan& plan, Refusals& refusals) {
  if (plan.param_dtype == 0) plan.param_dtype = YOKE_F32;
  if (plan.reduce_dtype == 0)
    plan.reduce_dtype = plan.param_dtype == YOKE_F64 ? YOKE_F64 : YOKE_F32;
  if (!is_known(plan.param_dtype)) {
    refusals.refuse("precision.param",
                    dtype_name(plan.param_dtype),
                    "bf16, fp32, fp64",
                    "other compute types are not built yet");
    return;
  }
  if (is_known(plan.reduce_dtype) && item_size(plan.reduce_dtype) >= item_size(plan.param_dtype))
    return;
  refusals.refuse("precision.reduce",
                  dtype_name(plan.reduce_dtype),
                  "bf16, fp32 or fp64, and at least " + std::string(dtype_name(plan.param_dtype)),
                  "leave it unset, or gradients would be less precise than the computation");
}

void check_model(const YokeModelSummary& model, Refusals& refusals) {
  if (model.num_blocks == 0)
    refusals.refuse("model", "no block", "at least one block", "give the model blocks");
  std::vector<bool> used(model.num_params, false);
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    for (uint64_t i = 0; i < block.num_params; ++i) used[block.params[i]] = true;
  }
  for (uint64_t p = 0; p < model.num_params; ++p) {
    if (used[p]) continue;
    refusals.refuse("model",
                    "parameter '" + std::string(view(model.params[p]->name)) + "' in no block",
                    "every parameter in at least one block",
                    "ptd gathers parameters by block");
  }
}

// A set option that changes nothing is probably not what the user meant.
void note_idle_options(const YokePlanArgs& args, const YokePlan& plan, Refusals& refusals) {
  if (plan.degree[YOKE_DP_SHARD] != 1) return;
  const Options options(args.options, args.num_options);
  for (const char* key : {"unit_bytes", "reshard_after_forward", "accumulate"}) {
    if (!options.given(key)) continue;
    if (key == std::string_view("unit_bytes") && plan.degree[YOKE_DP_REPLICATE] > 1) continue;
    refusals.note(std::string("ptd.") + key,
                  "set",
                  "it has no effect with dp_shards = 1: nothing is sharded");
  }
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, Refusals& refusals) {
  if (check_axes(plan, refusals)) fill_degrees(plan, refusals);
  check_precision(plan, refusals);
  check_model(*args.model, refusals);
  note_idle_options(args, plan, refusals);
}

ModelSpec model_spec(const YokeModelSummary& model) {
  ModelSpec spec;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    spec.params.push_back({numel(param.shape, param.ndim), param.trainable != 0, param.decay != 0});
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    spec.blocks.emplace_back(block.params, block.params + block.num_params);
  }
  return spec;
}

}  // namespace yoke::ptd
