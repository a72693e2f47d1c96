// Builds the action list of a step in two passes. list_computation() lists what the rank computes,
// in the order that the pipeline (or the only stage) prescribes, with the messages between stages;
// Builder then inserts the collectives. The order of the computation is therefore decided in one
// place, and Builder handles sharding, replicas and accumulation for every order.
//
// Builder follows three rules. The next unit is gathered while the current one computes. One
// reduction is in flight at a time, during the backward of the preceding block. A unit stays whole
// between two uses if nothing would run in between. PyTorch's FSDP uses hooks in the modules
// instead, which find these points only while the step runs. A list can be checked and printed
// beforehand, and its costs can be computed.
#include "sdk/mesh/schedule/schedule.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "sdk/mesh/schedule/computation.hpp"
#include "sdk/mesh/schedule/whole_stages.hpp"

namespace yoke::mesh {
namespace {

constexpr int kNone = -1;

bool adds_gradients(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput ||
         kind == ActionKind::kBackwardWeight;
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Inserts the communication into the list of computations.
class Builder {
 public:
  explicit Builder(const StepSpec& spec) : spec_(spec), ops_(list_computation(spec)) {
    starts_.resize(ops_.size());
    ends_.resize(ops_.size());
    complete_.resize(ops_.size());
    in_use_.resize(spec.units.size(), false);
    completed_.resize(spec.units.size(), 0);
    find_evictions();
    for (int u = 0; u < static_cast<int>(spec.units.size()); ++u) {
      if (spec.shards > 1) find_intervals(u);
      if (spec.units[u].trainable && !spec.forward_only) find_complete_gradients(u);
    }
  }

  std::vector<Action> build() {
    // The parameters change with every update, so the scales are those of this step.
    if (spec_.scale_bytes > 0)
      out_.push_back({.kind = ActionKind::kReduceScales, .bytes = spec_.scale_bytes});
    for (size_t i = 0; i < ops_.size(); ++i) {
      unshard_before(i);
      if (adds_gradients(ops_[i].kind) && uses(i, reducing_.first)) wait_reduce();
      out_.push_back(ops_[i]);
      reshard_after(i);
      for (int u : complete_[i]) reduce(u, i);
    }
    wait_reduce();
    wait_grad();
    if (spec_.forward_only) {
      out_.push_back({.kind = ActionKind::kReduceLoss});
    } else {
      exchange_tied();
      if (spec_.reduce_partial_grads) out_.push_back({.kind = ActionKind::kReducePartialGrads});
      out_.push_back({.kind = ActionKind::kReduceScalars});
      out_.push_back({.kind = ActionKind::kUpdate, .bytes = spec_.update_bytes});
    }
    return std::move(out_);
  }

 private:
  bool uses(size_t op, int unit) const {
    return ops_[op].block >= 0 && contains(spec_.blocks[ops_[op].block], unit);
  }

  // Finds the operations before which a stage is evicted.
  void find_evictions() {
    const std::vector<OwnStage> stages = spec_.stages();
    const int most = spec_.whole_stages;
    if (most == 0 || most >= static_cast<int>(stages.size())) return;
    for (const Action& op : ops_) {
      const auto own = std::find_if(
          stages.begin(), stages.end(), [&](const OwnStage& s) { return op.block < s.end; });
      stage_of_op_.push_back(op.block < 0 ? kNone : static_cast<int>(own - stages.begin()));
    }
    evictions_ = evictions(stage_of_op_, static_cast<int>(stages.size()), most);
  }

  // Returns true if the stage of operation i is evicted between this operation and operation j,
  // which comes later.
  bool evicted_between(size_t i, size_t j) const {
    if (evictions_.empty()) return false;
    const std::vector<size_t>& left = evictions_[stage_of_op_[i]];
    const auto next = std::upper_bound(left.begin(), left.end(), i);
    return next != left.end() && *next <= j;
  }

  // Splits the uses of a unit into intervals during which it stays whole. The unit is added to
  // starts_ at the first operation of each interval and to ends_ at the last one. Consecutive
  // operations that use the unit share an interval. Without resharding after forward, an interval
  // lasts until the unit's stage is evicted, or to the end of the step.
  void find_intervals(int unit) {
    size_t last = 0;
    bool used = false, others = false;  // others: a computation without the unit came after `last`
    for (size_t i = 0; i < ops_.size(); ++i) {
      // The gradients of weights are products of activations: they need no parameters.
      if (!uses(i, unit) || ops_[i].kind == ActionKind::kBackwardWeight) {
        others = others || is_computation(ops_[i].kind);
        continue;
      }
      const bool keep =
          used && (!others || (!spec_.reshard_after_forward && !evicted_between(last, i)));
      if (!keep) {
        if (used) ends_[last].push_back(unit);
        starts_[i].push_back(unit);
      }
      used = true;
      others = false;
      last = i;
    }
    if (used) ends_[last].push_back(unit);
  }

  // Finds, for each micro-batch, the operation after which the unit's gradients are complete. For a
  // tied parameter that is the backward of its first block, which runs last. A unit without a
  // backward on this rank has no such operation and is never reduced.
  void find_complete_gradients(int unit) {
    std::vector<int> last(spec_.micros, kNone);
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (adds_gradients(ops_[i].kind) && uses(i, unit)) last[ops_[i].micro] = static_cast<int>(i);
    }
    for (int op : last) {
      if (op != kNone) complete_[op].push_back(unit);
    }
  }

  // Returns true if the gradients of a unit, which are complete after operation i for a micro-batch
  // that is not the last, are to be reduced now because their stage is evicted before it is used
  // again.
  bool evicted_after(int unit, size_t i) const {
    size_t next = i + 1;
    while (next < ops_.size() && !(adds_gradients(ops_[next].kind) && uses(next, unit))) ++next;
    return next < ops_.size() && evicted_between(i, next);
  }

  void unshard(int unit) {
    out_.push_back(
        {.kind = ActionKind::kUnshard, .unit = unit, .bytes = spec_.units[unit].gathered_bytes()});
    in_use_[unit] = true;
  }

  // Waits for the units that operation i needs and starts to gather the next ones, so that the
  // gather overlaps with the computation.
  void unshard_before(size_t i) {
    if (starts_[i].empty()) return;
    for (int u : starts_[i]) {
      if (!in_use_[u]) unshard(u);
    }
    for (int u : starts_[i]) out_.push_back({.kind = ActionKind::kWaitUnshard, .unit = u});
    size_t next = i + 1;
    while (next < ops_.size() && starts_[next].empty()) ++next;
    prefetch_ = next < ops_.size() ? starts_[next] : std::vector<int>{};
    for (int u : prefetch_) {
      if (!in_use_[u]) unshard(u);
    }
  }

  void reshard_after(size_t i) {
    for (int u : ends_[i]) {
      out_.push_back(
          {.kind = ActionKind::kReshard, .unit = u, .bytes = spec_.units[u].param_bytes});
      in_use_[u] = false;
      // The prefetch skipped this unit, because it was still whole then.
      if (contains(prefetch_, u)) unshard(u);
    }
  }

  // Starts the reduction of gradients, which are complete after operation i, if it is due. One
  // reduction is in flight at a time: a second one would share the links with the first and need a
  // second whole gradient buffer.
  void reduce(int unit, size_t i) {
    // Counted in the order in which gradients are complete; a file may have another one than that
    // of the micro-batches.
    const int micro = completed_[unit]++;
    const bool last = micro == spec_.micros - 1;
    if (spec_.shards > 1) {
      if (!last && spec_.accumulate == Accumulate::kUnsharded && !evicted_after(unit, i)) return;
      wait_reduce();
      out_.push_back({.kind = ActionKind::kReduceGrad,
                      .unit = unit,
                      .micro = micro,
                      .bytes = spec_.units[unit].grad_bytes});
      reducing_ = {unit, micro};
    } else if (last && !(spec_.exact_sums && spec_.units[unit].is_tied())) {
      all_reduce_grad(unit);
    }
  }

  void wait_reduce() {
    const auto [unit, micro] = std::exchange(reducing_, {kNone, kNone});
    if (unit == kNone) return;
    out_.push_back({.kind = ActionKind::kWaitReduce,
                    .unit = unit,
                    .micro = micro,
                    .bytes = spec_.units[unit].grad_bytes});
    // The replicas sum their shards once per step, however many micro-batches were reduced before.
    if (micro == spec_.micros - 1) all_reduce_grad(unit);
  }

  void all_reduce_grad(int unit) {
    if (spec_.replicas == 1) return;
    wait_grad();
    out_.push_back({.kind = ActionKind::kAllReduceGrad,
                    .unit = unit,
                    .bytes = spec_.units[unit].grad_bytes / spec_.shards});
    all_reducing_ = unit;
  }

  void wait_grad() {
    const int unit = std::exchange(all_reducing_, kNone);
    if (unit != kNone) out_.push_back({.kind = ActionKind::kWaitGrad, .unit = unit});
  }

  // All ranks exchange in the order of the parameters, so that no two of them wait for each other.
  void exchange_tied() {
    std::map<int, int> units;  // unit of each tied parameter
    for (size_t u = 0; u < spec_.units.size(); ++u) {
      if (spec_.units[u].is_tied()) units[spec_.units[u].tied_param] = static_cast<int>(u);
    }
    for (const auto& [param, unit] : units) {
      out_.push_back({.kind = ActionKind::kExchangeTied,
                      .unit = unit,
                      .peer = spec_.units[unit].partner,
                      .bytes = spec_.units[unit].grad_bytes / spec_.shards});
      if (spec_.exact_sums) all_reduce_grad(unit);
    }
    wait_grad();
  }

  const StepSpec& spec_;
  std::vector<Action> ops_;
  std::vector<std::vector<int>> starts_;    // units that become whole for this operation
  std::vector<std::vector<int>> ends_;      // units that are not needed after it
  std::vector<std::vector<int>> complete_;  // units whose gradients are complete after it
  std::vector<int> stage_of_op_;            // empty if all stages may stay whole
  std::vector<std::vector<size_t>>
      evictions_;               // evictions of each stage; empty if no stage is evicted
  std::vector<int> completed_;  // number of micro-batches whose gradients are complete, by unit
  std::vector<bool> in_use_;    // gathered, or being gathered
  std::vector<int> prefetch_;   // units of the latest prefetch
  std::pair<int, int> reducing_{kNone, kNone};  // unit and micro-batch of the reduction in flight
  int all_reducing_ = kNone;                    // unit of the all-reduce in flight
  std::vector<Action> out_;
};

// Drops each Reshard that is followed by an Unshard of the same unit with no computation in
// between, together with that Unshard and its WaitUnshard. The unit stays whole: the peak of memory
// is the same, and a gather is saved. Builder cannot do this itself, because it decides a prefetch
// one operation ahead.
std::vector<Action> drop_round_trips(std::vector<Action> list) {
  std::vector<bool> drop(list.size(), false);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind != ActionKind::kReshard) continue;
    size_t again = i + 1;
    while (again < list.size() && !is_computation(list[again].kind) &&
           !(list[again].kind == ActionKind::kUnshard && list[again].unit == list[i].unit)) {
      ++again;
    }
    if (again == list.size() || is_computation(list[again].kind)) continue;
    size_t wait = again;
    while (!(list[wait].kind == ActionKind::kWaitUnshard && list[wait].unit == list[i].unit))
      ++wait;
    drop[i] = drop[again] = drop[wait] = true;
  }
  std::vector<Action> kept;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!drop[i]) kept.push_back(list[i]);
  }
  return kept;
}

}  // namespace

PipelineSpec pipeline_spec(PipelineKind kind, const Stages& stages, int rank, int first_trained) {
  const int ranks = *std::max_element(stages.rank_of.begin(), stages.rank_of.end()) + 1;
  PipelineSpec spec{.kind = kind,
                    .ranks = ranks,
                    .rank = rank,
                    .chunks = stages.count() / ranks,
                    .stages = own_stages(stages, rank),
                    .given = nullptr};
  for (const int block : stages.blocks_of(rank)) {
    spec.backward_from += block < first_trained ? 1 : 0;
    spec.gradient_from += block <= first_trained ? 1 : 0;
  }
  return spec;
}

PipelineSpec Pipeline::spec_of(int rank) const {
  PipelineSpec spec = pipeline_spec(kind, stages, rank, first_trained);
  spec.given = given;
  return spec;
}

int first_trained_block(const YokeModelSummary& model) {
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    const bool trained = std::any_of(block.params, block.params + block.num_params, [&](int64_t p) {
      return model.params[p]->trainable != 0;
    });
    if (trained) return static_cast<int>(b);
  }
  return static_cast<int>(model.num_blocks);
}

int64_t sequences_of(const YokePlan& plan) {
  const int64_t data_ranks = int64_t{plan.degree[YOKE_DP_REPLICATE]} * plan.degree[YOKE_DP_SHARD];
  return plan.global_batch % data_ranks == 0 ? plan.global_batch / data_ranks : 0;
}

int64_t micros_of(const YokePlan& plan) {
  const int64_t sequences = sequences_of(plan);
  const bool divides = plan.micro_batch > 0 && sequences % plan.micro_batch == 0;
  return divides ? sequences / plan.micro_batch : 0;
}

std::vector<OwnStage> StepSpec::stages() const {
  if (!pipeline.stages.empty()) return pipeline.stages;
  return {{.index = 0, .first = 0, .end = static_cast<int>(blocks.size())}};
}

TrainedBlocks StepSpec::trained_blocks() const {
  const int none = static_cast<int>(blocks.size());
  if (forward_only) return {none, none};
  if (!pipeline.stages.empty()) return {pipeline.backward_from, pipeline.gradient_from};
  const auto trains = [&](const std::vector<int>& of_block) {
    return std::any_of(of_block.begin(), of_block.end(), [&](int u) { return units[u].trainable; });
  };
  const auto first = std::find_if(blocks.begin(), blocks.end(), trains);
  const int from = static_cast<int>(first - blocks.begin());
  return {from, from + 1};
}

std::vector<Action> build_schedule(const StepSpec& spec) {
  return drop_round_trips(Builder(spec).build());
}

}  // namespace yoke::mesh
