// Puts the parts of ptd together for one model: plan and options become a StepSpec, parameters
// become units and shards, and the executor gets references to all of it. Nothing here runs during
// a step.
#include "plugins/ptd/wrapped_model.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>

#include "plugins/ptd/checkpoint.hpp"
#include "plugins/ptd/plan.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd {
namespace {

at::Device device_of(const YokeHost& host) {
  return host.device.type == YOKE_DEVICE_CUDA
             ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(host.device.id))
             : at::Device(at::kCPU);
}

// An update is often smaller than the last bit of a bf16 parameter, so bf16 runs update fp32 master
// copies.
Dtypes dtypes_of(const YokePlan& plan) {
  const at::ScalarType compute = scalar_type(plan.param_dtype);
  return {compute, compute == at::kBFloat16 ? at::kFloat : compute, scalar_type(plan.reduce_dtype)};
}

// Returns the model as LibTorch objects, whose parameters ptd can point into its own buffers.
const TorchModel& require_torch_model(const YokeModel& model, at::ScalarType dtype) {
  const TorchModel* torch = torch_model(model);
  if (torch == nullptr) {
    throw Error(
        YOKE_FAILED_PRECONDITION,
        concat("ptd was built with ",
               kTorchTag,
               " and needs the model as LibTorch objects, which a host attaches only if its "
               "LibTorch is the same; this host attached none. Build both with the same "
               "LibTorch"));
  }
  for (uint64_t p = 0; p < model.summary->num_params; ++p) {
    const at::Tensor& leaf = (*torch->params)[p];
    if (leaf.scalar_type() == dtype && leaf.is_contiguous() && leaf.storage_offset() == 0) continue;
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("parameter '",
                       view(model.summary->params[p]->name),
                       "' is ",
                       c10::toString(leaf.scalar_type()),
                       leaf.is_contiguous() && leaf.storage_offset() == 0 ? "" : " and not compact",
                       "; ptd needs compact leaves in the plan's compute type, ",
                       c10::toString(dtype)));
  }
  return *torch;
}

ModelSpec own_part(const ModelSpec& model, const PipelinePart& pipeline) {
  if (pipeline.spec.ranks == 1) return model;
  return part_of_model(model, pipeline.stages, pipeline.spec.rank);
}

// If parameters are not sharded over cp, the ranks of cp hold copies of each shard. The schedule
// treats these ranks as replicas, because the same all-reduce sums their gradients.
StepSpec step_spec(const ModelSpec& model,
                   const UnitMap& map,
                   const ShardState& state,
                   const PipelinePart& pipeline,
                   const YokePlan& plan,
                   const PtdOptions& options) {
  StepSpec spec;
  for (size_t u = 0; u < map.units.size(); ++u) {
    const ShardState::UnitShard& unit = state.units[u];
    const int64_t params = unit.layout.numel() * item_size(plan.param_dtype);
    const int64_t grads = unit.layout.numel() * item_size(plan.reduce_dtype);
    const int param = map.units[u].params.front();
    const int partner = model.params[param].partner;
    spec.units.push_back({unit.trainable,
                          params,
                          unit.trainable ? grads : 0,
                          partner,
                          partner == OwnStage::kNoRank ? -1 : param});
  }
  spec.blocks = map.of_block;
  const int cp = plan.degree[YOKE_CP];
  spec.shards = plan.degree[YOKE_DP_SHARD] * (options.shard_over_cp ? cp : 1);
  spec.replicas = plan.degree[YOKE_DP_REPLICATE] * (options.shard_over_cp ? 1 : cp);
  spec.reshard_after_forward = options.reshard_after_forward;
  spec.recompute = options.recompute;
  spec.accumulate = options.accumulate;
  spec.exact_sums = options.exact_sums;
  spec.pipeline = pipeline.spec;
  spec.reduce_partial_grads = plan.degree[YOKE_TP] > 1 && options.mesh.sequence_parallel;
  if (plan.micro_batch > 0) {
    const int data_ranks = plan.degree[YOKE_DP_REPLICATE] * plan.degree[YOKE_DP_SHARD];
    spec.micros = plan.global_batch / (plan.micro_batch * data_ranks);
  }
  return spec;
}

StepCosts costs_of(const StepSpec& spec,
                   const PipelinePart& pipeline,
                   const YokeModelSummary& model,
                   const YokePlan& plan) {
  // A block reports how many bytes it keeps without tp and cp. With them each rank keeps less, so
  // the cost is unknown.
  const bool plain = plan.degree[YOKE_CP] == 1 && plan.degree[YOKE_TP] == 1;
  const auto cost_of = [&](int b) {
    const YokeBlock& block = *model.blocks[b];
    const bool known = plain && YOKE_HAS(YokeBlock, &block, carry_bytes) &&
                       block.activation_bytes >= 0 && block.carry_bytes >= 0;
    return known ? BlockCost{block.activation_bytes * plan.micro_batch,
                             block.carry_bytes * plan.micro_batch}
                 : BlockCost{};
  };
  std::vector<BlockCost> blocks;
  for (const int b : pipeline.blocks) blocks.push_back(cost_of(b));
  for (const OwnStage& stage : pipeline.spec.stages) {
    const bool receives = stage.from != OwnStage::kNoRank && stage.from != pipeline.spec.rank;
    if (receives) blocks[stage.first].input = cost_of(pipeline.blocks[stage.first] - 1).carry;
  }
  return step_costs(spec, build_schedule(spec), blocks);
}

// Returns how parameters are distributed over data-parallel ranks, such as "FSDP over 4 ranks"; ""
// for one rank.
std::string data_strategy(const StepSpec& spec) {
  if (spec.shards == 1)
    return spec.replicas == 1 ? "" : concat("DDP over ", spec.replicas, " ranks");
  if (spec.replicas == 1) return concat("FSDP over ", spec.shards, " ranks");
  return concat("HSDP, ", spec.replicas, " replicas of ", spec.shards, " shards");
}

// Returns the strategy on all axes, such as "TP over 2 ranks with SP, FSDP over 2 ranks".
std::string strategy(const StepSpec& spec,
                     const PipelinePart& pipeline,
                     const YokePlan& plan,
                     const PtdOptions& options) {
  std::string cut;  // "3 | 4 | 4 | 2"
  for (int s = 0; s < pipeline.stages.count(); ++s) {
    const std::vector<int>& first = pipeline.stages.first_block;
    cut += concat(s == 0 ? "" : " | ", first[s + 1] - first[s]);
  }
  std::string text;
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  };
  if (const int pp = plan.degree[YOKE_PP]; pp > 1)
    add(concat(
        "PP over ", pp, " ranks (", info_of(spec.pipeline.kind).name, ", ", cut, " blocks)"));
  if (const int tp = plan.degree[YOKE_TP]; tp > 1)
    add(concat("TP over ", tp, options.mesh.sequence_parallel ? " ranks with SP" : " ranks"));
  if (const int cp = plan.degree[YOKE_CP]; cp > 1) add(concat("CP over ", cp, " ranks"));
  add(data_strategy(spec));
  return text.empty() ? "one rank" : text;
}

// Returns the line that rank 0 logs, such as "ptd: FSDP over 2 ranks, 5 blocks in 2 units".
std::string summary_line(const StepSpec& spec,
                         const PipelinePart& pipeline,
                         const YokePlan& plan,
                         const PtdOptions& options) {
  return concat("ptd: ",
                strategy(spec, pipeline, plan, options),
                ", ",
                spec.blocks.size(),
                plan.degree[YOKE_PP] > 1 ? " blocks of rank 0 in " : " blocks in ",
                spec.units.size(),
                " units");
}

int64_t nbytes(const at::Tensor& t) {
  return static_cast<int64_t>(t.nbytes());
}

}  // namespace

WrappedModel::WrappedModel(const YokeModel& model,
                           const YokePlan& plan,
                           const PtdOptions& options,
                           const Comms& comms,
                           const YokeHost& host)
    : summary_(*model.summary),
      comms_(comms),
      rank_(host.rank),
      cuts_(param_cuts(summary_, comms.tp.rank(), comms.tp.size())),
      pipeline_(pipeline_part(summary_, plan, options, comms.carry_up.rank())),
      spec_(own_part(model_spec(summary_, comms.tp.size()), pipeline_)),
      units_(make_units(spec_, options.unit_bytes, item_size(plan.param_dtype))),
      state_(spec_,
             units_,
             comms.unshard.size(),
             comms.unshard.rank(),
             dtypes_of(plan),
             device_of(host)) {
  const TorchModel& torch = require_torch_model(model, scalar_type(plan.param_dtype));
  init_params(state_, cuts_, model);
  model_on_mesh_ = ModelOnMesh::make(summary_, *torch.params, options.mesh, comms_, host);
  optimizer_ = make_optimizer(*plan.optimizer, state_);
  const StepSpec step = step_spec(spec_, units_, state_, pipeline_, plan, options);
  const TorchGraphs* graphs = options.cuda_graph ? &graphs_of(host) : nullptr;
  costs_ = costs_of(step, pipeline_, summary_, plan);
  executor_ = std::make_unique<Executor>(Executor::Parts{.host = host,
                                                         .model = torch,
                                                         .params = spec_,
                                                         .blocks = pipeline_.blocks,
                                                         .state = state_,
                                                         .model_on_mesh = model_on_mesh_.get(),
                                                         .comms = comms_,
                                                         .optimizer = *optimizer_,
                                                         .spec = step,
                                                         .clip = plan.optimizer->clip,
                                                         .graphs = graphs});
  if (rank_ == 0)
    host.log(host.ctx, YOKE_LOG_INFO, view(summary_line(step, pipeline_, plan, options)));
}

YokeWrapResult WrappedModel::wrap_result() const {
  YokeWrapResult result{};
  result.param_bytes = nbytes(state_.params) + nbytes(state_.frozen) + executor_->copy_bytes();
  result.grad_bytes = nbytes(state_.grads) + executor_->second_gradient_bytes();
  for (const Moment& moment : optimizer_->moments())
    result.optimizer_bytes += nbytes(moment.values);
  result.unsharded_bytes = costs_.unsharded_bytes;
  result.activation_bytes = costs_.activation_bytes;
  result.axis_bytes[YOKE_PP] = std::max<int64_t>(costs_.pp_bytes, 0);
  result.axis_bytes[YOKE_DP_SHARD] = costs_.dp_shard_bytes;
  result.axis_bytes[YOKE_DP_REPLICATE] = costs_.dp_replicate_bytes;
  return result;
}

void WrappedModel::checkpoint(const YokeCheckpointArgs& args) {
  const StateRank rank{comms_.all_reduce_grad.rank(),
                       comms_.all_reduce_grad.size(),
                       comms_.tp.rank(),
                       comms_.tp.size(),
                       rank_};
  visit_state(args, summary_, state_, *optimizer_, cuts_, rank);
}

}  // namespace yoke::ptd
