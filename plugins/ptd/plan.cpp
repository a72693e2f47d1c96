#include "plugins/ptd/plan.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "plugins/ptd/options.hpp"
#include "yoke/tensor.hpp"

namespace yoke::ptd {
namespace {

// How many ranks the degrees must make up, as the user sees it.
std::string arithmetic(const YokePlan& plan) {
  constexpr std::pair<int, const char*> kAxes[] = {{YOKE_DP_REPLICATE, "dp_degree"},
                                                   {YOKE_DP_SHARD, "dp_shards"},
                                                   {YOKE_CP, "cp_degree"},
                                                   {YOKE_TP, "tp_degree"}};
  std::string text;
  int64_t product = 1;
  for (const auto& [axis, key] : kAxes) {
    const int32_t degree = plan.degree[axis];
    if (degree == 1 && axis != YOKE_DP_REPLICATE && axis != YOKE_DP_SHARD) continue;
    text += (text.empty() ? "" : " x ") + std::string(key) + " " + std::to_string(degree);
    product *= degree;
  }
  return text + " = " + std::to_string(product) + ", but the run has " +
         std::to_string(plan.world_size) + " rank(s)";
}

// Unset degrees: what is left of the world goes into dp_shards, the rest becomes 1.
void fill_degrees(YokePlan& plan, Refusals& refusals) {
  if (plan.degree[YOKE_PP] > 1) {
    refusals.refuse("pp_degree",
                    std::to_string(plan.degree[YOKE_PP]),
                    "1",
                    "pp_degree > 1 is not built yet; use dp_shards, tp_degree, cp_degree and "
                    "dp_degree");
  }
  int32_t& shards = plan.degree[YOKE_DP_SHARD];
  int64_t others = 1;
  for (const int axis : {YOKE_PP, YOKE_DP_REPLICATE, YOKE_CP, YOKE_TP}) {
    if (plan.degree[axis] == 0) plan.degree[axis] = 1;
    others *= plan.degree[axis];
  }
  if (shards == 0) {
    shards = static_cast<int32_t>(std::max<int64_t>(1, plan.world_size / others));
    if (others * shards == plan.world_size) return;
    const int largest = static_cast<int>(
        std::max_element(plan.degree + YOKE_DP_REPLICATE, plan.degree + YOKE_NUM_AXES) -
        plan.degree);
    constexpr const char* kKeys[] = {
        "pp_degree", "dp_degree", "dp_shards", "cp_degree", "tp_degree"};
    refusals.refuse(
        kKeys[largest],
        std::to_string(plan.degree[largest]),
        "degrees whose product divides the " + std::to_string(plan.world_size) + " ranks",
        "what is left of the world goes into dp_shards");
    return;
  }
  if (others * shards == plan.world_size) return;
  refusals.refuse("dp_shards",
                  std::to_string(shards),
                  "degrees whose product is the number of ranks",
                  arithmetic(plan) + "; start " + std::to_string(others * shards) +
                      " ranks, or leave dp_shards unset");
}

std::string divisors_of(int64_t n) {
  std::string text;
  for (int64_t d = 1; d <= n && d <= 1024; ++d) {
    if (n % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  }
  return text;
}

// Tensor parallelism needs hints for all parameters, and a degree that divides everything it cuts.
void check_tensor_parallel(const YokeModelSummary& model,
                           const YokePlan& plan,
                           Refusals& refusals) {
  const int64_t tp = plan.degree[YOKE_TP];
  if (tp <= 1) return;
  int64_t legal = 0;  // every divisor of it is a legal degree
  const YokeParameter* odd = nullptr;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    if (param.tp_cut == 0) {
      refusals.refuse("tp_degree",
                      std::to_string(tp),
                      "1",
                      "the model does not say how parameter '" + std::string(view(param.name)) +
                          "' may be cut; give its family tensor-parallel hints (BlockList::tp)");
      return;
    }
    if (param.tp_cut < 0) continue;
    legal = std::gcd(legal, param.tp_parts);
    if (param.tp_parts % tp != 0 && odd == nullptr) odd = &param;
  }
  if (odd == nullptr) return;
  refusals.refuse("tp_degree",
                  std::to_string(tp),
                  divisors_of(legal),
                  "parameter '" + std::string(view(odd->name)) + "' consists of " +
                      std::to_string(odd->tp_parts) +
                      " parts (heads, rows or columns) that stay whole");
}

// What is cut along the sequence: inputs over cp, activations over tp.
void check_sequence(const YokeModelSummary& model,
                    const YokePlan& plan,
                    const PtdOptions& options,
                    Refusals& refusals) {
  const int64_t cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  const std::string length = "data.seq_len = " + std::to_string(model.seq_len);
  if (cp > 1 && model.seq_len == 0) {
    refusals.refuse("cp_degree",
                    std::to_string(cp),
                    "1",
                    "the model is not one of sequences, so there is nothing to cut");
    return;
  }
  const int64_t parts = options.mesh.order == SequenceOrder::kHeadTail ? 2 : 1;  // of a rank
  if (cp > 1 && model.seq_len % (cp * parts) != 0) {
    refusals.refuse("cp_degree",
                    std::to_string(cp),
                    model.seq_len % parts == 0 ? divisors_of(model.seq_len / parts) : "1",
                    parts == 2 ? "twice the degree divides " + length +
                                     "; with ptd.cp_order = \"plain\" the degree itself"
                               : "the degree divides " + length);
    return;
  }
  if (tp <= 1 || !options.mesh.sequence_parallel || model.seq_len == 0) return;
  if (model.seq_len % (cp * tp) == 0) return;
  refusals.refuse("tp_degree",
                  std::to_string(tp),
                  "degrees that, times cp_degree, divide " + length,
                  "change data.seq_len, or set ptd.sequence_parallel = false");
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

void check_optimizer(const YokeOptimizer& optimizer, Refusals& refusals) {
  if (optimizer.kind == YOKE_ADAMW || optimizer.kind == YOKE_SGD) return;
  refusals.refuse("train.optimizer",
                  std::to_string(optimizer.kind),
                  "adamw, sgd",
                  "other optimizers are not built yet");
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
void note_idle_options(const YokePlanArgs& args,
                       const YokePlan& plan,
                       const PtdOptions& ptd,
                       Refusals& refusals) {
  const Options options(args.options, args.num_options);
  const auto note = [&](std::initializer_list<const char*> keys, const char* why) {
    for (const char* key : keys) {
      if (options.given(key)) refusals.note(std::string("ptd.") + key, "set", why);
    }
  };
  const int32_t cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  if (plan.degree[YOKE_DP_SHARD] * (ptd.shard_over_cp ? cp : 1) == 1) {
    const char* why = "it has no effect with dp_shards = 1: nothing is sharded";
    note({"reshard_after_forward", "accumulate"}, why);
    if (plan.degree[YOKE_DP_REPLICATE] * cp == 1) note({"unit_bytes"}, why);
  }
  if (tp == 1) note({"sequence_parallel", "loss_parallel"}, "it has no effect with tp_degree = 1");
  if (cp == 1)
    note({"shard_over_cp", "cp_attention", "cp_order"}, "it has no effect with cp_degree = 1");
  if (tp == 1 && cp == 1)
    note({"debug_ops"}, "no tensor is distributed with tp_degree = 1 and cp_degree = 1");
}

}  // namespace

void complete_plan(const YokePlanArgs& args, YokePlan& plan, Refusals& refusals) {
  const PtdOptions options(Options(args.options, args.num_options));
  fill_degrees(plan, refusals);
  check_tensor_parallel(*args.model, plan, refusals);
  check_sequence(*args.model, plan, options, refusals);
  check_precision(plan, refusals);
  check_optimizer(*plan.optimizer, refusals);
  check_model(*args.model, refusals);
  note_idle_options(args, plan, options, refusals);
}

ModelSpec model_spec(const YokeModelSummary& model, int tp) {
  ModelSpec spec;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    const bool cut = tp > 1 && param.tp_cut > 0;
    spec.params.push_back({numel(param.shape, param.ndim) / (cut ? tp : 1),
                           param.trainable != 0,
                           param.decay != 0,
                           tp > 1 && !cut});
  }
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    spec.blocks.emplace_back(block.params, block.params + block.num_params);
  }
  return spec;
}

std::vector<ParamCut> param_cuts(const YokeModelSummary& model, int tp_rank, int tp) {
  std::vector<ParamCut> cuts(model.num_params);
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const YokeParameter& param = *model.params[p];
    if (tp == 1 || param.tp_cut <= 0) continue;
    const std::vector<int64_t> shape(param.shape, param.shape + param.ndim);
    cuts[p] = ParamCut::along(shape, param.tp_cut - 1, tp_rank, tp);
  }
  return cuts;
}

}  // namespace yoke::ptd
