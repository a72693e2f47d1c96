#include "plugins/ptd/rank_plan.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "plugins/ptd/fp8_gather.hpp"
#include "plugins/ptd/plan.hpp"
#include "sdk/mesh/schedule/block_costs.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "yoke/fp8_params.hpp"
#include "yoke/muon.h"
#include "yoke/tensor.hpp"

namespace yoke::ptd {
namespace {

std::vector<UnitSpec> unit_specs(const ModelSpec& model,
                                 const UnitMap& map,
                                 int shards,
                                 const YokePlan& plan) {
  std::vector<UnitSpec> specs;
  for (const Unit& unit : map.units) {
    const int64_t numel = FlatLayout(model, unit, shards, item_size(plan.param_dtype)).numel();
    const bool casts =  // see dtypes_of()
        item_size(plan.param_dtype) == 2 && shards > 1 && !unit.fp8;
    const int param = unit.params.front();
    const int partner = model.params[param].partner;
    specs.push_back({unit.trainable,
                     numel * item_size(plan.param_dtype),
                     unit.trainable ? numel * item_size(plan.reduce_dtype) : 0,
                     partner,
                     partner == OwnStage::kNoRank ? -1 : param,
                     casts ? numel / shards * item_size(plan.param_dtype) : 0,
                     unit.fp8 ? numel : 0});
  }
  return specs;
}

// Returns the bytes that a rank needs to keep its weights rounded to fp8. It is 0 with shards,
// because the copies would outlive the gathered parameters, and with tp or cp, because distributed
// tensors cannot be kept.
int64_t rounding_bytes(const YokeModelSummary& summary,
                       const ModelSpec& own,
                       int shards,
                       const YokePlan& plan) {
  const Fp8Params* const fp8 = fp8_params(summary);
  const bool distributed = plan.degree[YOKE_TP] > 1 || plan.degree[YOKE_CP] > 1;
  if (fp8 == nullptr || shards > 1 || distributed) return 0;
  std::set<int> params;
  for (const std::vector<int>& block : own.blocks) params.insert(block.begin(), block.end());
  int64_t bytes = 0;
  for (const int p : params)
    bytes += fp8->uses[p] == Fp8Use::kNone ? 0 : own.params[p].numel * kKeptRoundingBytes;
  return bytes;
}

// Returns the bytes that Muon gathers: the units that have hidden matrices, see optim/muon.cpp.
int64_t update_bytes(const ModelSpec& model, const UnitMap& map, int shards, const YokePlan& plan) {
  if (shards == 1) return 0;
  const int64_t item = item_size(plan.param_dtype);
  int64_t bytes = 0;
  for (const Unit& unit : map.units) {
    const bool gathers = std::any_of(unit.params.begin(), unit.params.end(), [&](int p) {
      return model.params[p].muon_rows > 0;
    });
    if (gathers) bytes += FlatLayout(model, unit, shards, item).numel() * item;
  }
  return bytes;
}

void mark_hidden_matrices(const YokeModelSummary& model, ModelSpec& spec) {
  for (size_t p = 0; p < spec.params.size(); ++p) {
    if (yoke_is_hidden_matrix(&model, static_cast<int64_t>(p)))
      spec.params[p].muon_rows = model.params[p]->shape[0];
  }
}

// If parameters are not sharded over cp, the ranks of cp hold copies of each shard. The schedule
// treats these ranks as replicas, because the same all-reduce sums their gradients.
StepSpec step_spec(const ModelSpec& model,
                   const UnitMap& map,
                   const PipelineSpec& pipeline,
                   const YokePlan& plan,
                   const PtdOptions& options) {
  StepSpec spec;
  const int data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
  spec.shards = shards_of(plan, options);
  spec.replicas = data_ranks * plan.degree[YOKE_CP] / spec.shards;
  spec.units = unit_specs(model, map, spec.shards, plan);
  spec.scale_bytes = scale_bytes(map, plan);
  spec.update_bytes = update_bytes(model, map, spec.shards, plan);
  spec.blocks = map.of_block;
  spec.reshard_after_forward = options.reshard_after_forward;
  spec.recompute = options.recompute;
  spec.accumulate = options.accumulate;
  spec.whole_stages = options.pp_whole;
  spec.exact_sums = options.exact_sums;
  spec.pipeline = pipeline;
  spec.reduce_partial_grads = plan.degree[YOKE_TP] > 1 && options.mesh.sequence_parallel;
  if (const int64_t micros = micros_of(plan); micros > 0) spec.micros = static_cast<int>(micros);
  return spec;
}

}  // namespace

std::vector<StepSpec> steps_of(const std::vector<RankPlan>& ranks) {
  std::vector<StepSpec> steps;
  for (const RankPlan& rank : ranks) steps.push_back(rank.step);
  return steps;
}

int shards_of(const YokePlan& plan, const PtdOptions& options) {
  return plan.degree[YOKE_DP_SHARD] * (options.shard_over_cp ? plan.degree[YOKE_CP] : 1);
}

std::vector<RankPlan> rank_plans(const YokeModelSummary& model,
                                 const YokePlan& plan,
                                 const PtdOptions& options,
                                 const Pipeline& pipeline) {
  ModelSpec whole = model_spec(model, plan.degree[YOKE_TP]);
  if (options.fp8_gather) choose_fp8_gathers(model, whole);
  if (yoke_is_muon(plan.optimizer->kind)) mark_hidden_matrices(model, whole);
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < plan.degree[YOKE_PP]; ++rank) {
    const PipelineSpec spec = pipeline.spec_of(rank);
    RankPlan& own = plans.emplace_back();
    own.blocks = pipeline.stages.blocks_of(rank);
    own.model = part_of_model(whole, pipeline.stages, rank);
    // Units that are evicted with a stage must not reach into another one.
    std::vector<int> stage_ends;
    for (const OwnStage& stage : spec.stages) {
      if (options.pp_whole > 0) stage_ends.push_back(stage.end - 1);
    }
    own.units = make_units(own.model, options.unit_bytes, item_size(plan.param_dtype), stage_ends);
    own.step = step_spec(own.model, own.units, spec, plan, options);
    own.step.rounding_bytes = rounding_bytes(model, own.model, own.step.shards, plan);
    own.costs = block_costs(model, own.blocks, spec, plan, tensor_cuts(options));
  }
  return plans;
}

}  // namespace yoke::ptd
