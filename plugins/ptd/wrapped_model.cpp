// Puts the parts of ptd together for one model: plan and options become a StepSpec, parameters
// become units and shards, and the executor gets references to all of it. Nothing here runs during
// a step.
#include "plugins/ptd/wrapped_model.hpp"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>

#include "plugins/ptd/checkpoint.hpp"
#include "plugins/ptd/plan.hpp"
#include "yoke/fp8_params.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd {
namespace {

at::Device device_of(const YokeHost& host) {
  return host.device.type == YOKE_DEVICE_CUDA
             ? at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(host.device.id))
             : at::Device(at::kCPU);
}

// An update is often smaller than the last bit of a 16-bit parameter, so bf16 and fp16 runs update
// fp32 master copies.
Dtypes dtypes_of(const YokePlan& plan) {
  const at::ScalarType compute = scalar_type(plan.param_dtype);
  const bool narrow = c10::elementSize(compute) == 2;
  return {compute, narrow ? at::kFloat : compute, scalar_type(plan.reduce_dtype)};
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
                     const Pipeline& pipeline,
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
  if (const int pp = plan.degree[YOKE_PP]; pp > 1) {
    const std::string schedule =
        pipeline.given ? options.pp_schedule_file : info_of(pipeline.kind).name;
    add(concat("PP over ", pp, " ranks (", schedule, ", ", cut, " blocks)"));
  }
  if (const int tp = plan.degree[YOKE_TP]; tp > 1)
    add(concat("TP over ", tp, options.mesh.sequence_parallel ? " ranks with SP" : " ranks"));
  if (const int cp = plan.degree[YOKE_CP]; cp > 1) add(concat("CP over ", cp, " ranks"));
  add(data_strategy(spec));
  return text.empty() ? "one rank" : text;
}

// Returns "1 unit" or "2 units".
std::string counted(size_t count, const char* what) {
  return concat(count, " ", what, count == 1 ? "" : "s");
}

// Returns the line that rank 0 logs, such as "ptd: FSDP over 2 ranks, 5 blocks in 2 units".
std::string summary_line(const StepSpec& spec,
                         const Pipeline& pipeline,
                         const YokePlan& plan,
                         const PtdOptions& options) {
  return concat("ptd: ",
                strategy(spec, pipeline, plan, options),
                ", ",
                counted(spec.blocks.size(), "block"),
                plan.degree[YOKE_PP] > 1 ? " of rank 0 in " : " in ",
                counted(spec.units.size(), "unit"));
}

// Returns the kernels of the host's device; nullptr if the run computes on the CPU.
const TorchKernels* kernels_of(const YokeHost& host) {
  return reinterpret_cast<const TorchKernels*>(
      host.get_service(host.ctx, "yoke.torch_kernels/1", sizeof(TorchKernels)));
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
      pipeline_(make_pipeline(summary_, plan, options)),
      plans_(rank_plans(summary_, plan, options, pipeline_)),
      own_(plans_[comms.pp_rank()]),
      state_(own_.model,
             own_.units,
             comms.unshard.size(),
             comms.unshard.rank(),
             dtypes_of(plan),
             device_of(host)) {
  const TorchModel& torch = require_torch_model(model, scalar_type(plan.param_dtype));
  init_params(state_, cuts_, model);
  model_on_mesh_ = ModelOnMesh::make(summary_, *torch.params, options.mesh, comms_, host);
  const TorchKernels* const kernels = kernels_of(host);
  if (comms.unshard.size() == 1 && state_.dtypes.compute != state_.dtypes.master &&
      uses_device_adamw(*plan.optimizer, state_.dtypes, kernels) &&
      takes_adamw(state_.dtypes.master, state_.dtypes.reduce, state_.dtypes.compute)) {
    state_.copies = at::empty_like(state_.params, state_.dtypes.compute);
  }
  optimizer_ = make_optimizer(*plan.optimizer, state_, own_.model, comms_.unshard, kernels);
  const TorchGraphs* graphs = options.cuda_graph ? &graphs_of(host) : nullptr;
  executor_ = std::make_unique<Executor>(Executor::Parts{.host = host,
                                                         .model = torch,
                                                         .params = own_.model,
                                                         .blocks = own_.blocks,
                                                         .state = state_,
                                                         .model_on_mesh = model_on_mesh_.get(),
                                                         .comms = comms_,
                                                         .optimizer = *optimizer_,
                                                         .specs = steps_of(plans_),
                                                         .rank = comms.pp_rank(),
                                                         .fp8 = fp8_params(summary_),
                                                         .clip = plan.optimizer->clip,
                                                         .graphs = graphs});
  costs_ = ActionCosts(own_.step, executor_->check(own_.step.micros), own_.costs).totals();
  if (rank_ == 0)
    host.log(host.ctx, YOKE_LOG_INFO, view(summary_line(own_.step, pipeline_, plan, options)));
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
  if (args.op == YOKE_CHECKPOINT_LOAD) executor_->params_change();  // even if loading fails
  visit_state(args, summary_, state_, *optimizer_, cuts_, rank);
}

}  // namespace yoke::ptd
