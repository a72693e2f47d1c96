// Times, traffic and the memory of a step are computed from the action lists, so an option that
// changes the lists needs no change here. The memory that is held for the whole run is computed
// from the units, the dtypes and the optimizer.
#include "plugins/ptd/forecast.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "sdk/mesh/schedule/checked_lists.hpp"
#include "sdk/mesh/schedule/flat_layout.hpp"
#include "yoke/optimizer.h"
#include "yoke/tensor.hpp"

namespace yoke::ptd {
namespace {

// Returns how many forwards of its block a computation takes.
double forwards_of(ActionKind kind, bool trained) {
  switch (kind) {
    case ActionKind::kBackward:
      return trained ? 2 : 1;
    case ActionKind::kBackwardWeight:
      return trained ? 1 : 0;
    default:
      return 1;
  }
}

// Returns true if a block of the rank has a trained parameter.
bool is_trained(const RankPlan& rank, int block) {
  const std::vector<int>& params = rank.model.blocks[block];
  return std::any_of(
      params.begin(), params.end(), [&](int p) { return rank.model.params[p].trainable; });
}

int32_t kind_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return YOKE_FORECAST_FORWARD;
    case ActionKind::kRecompute:
      return YOKE_FORECAST_RECOMPUTE;
    case ActionKind::kBackward:
      return YOKE_FORECAST_BACKWARD;
    case ActionKind::kBackwardInput:
      return YOKE_FORECAST_BACKWARD_INPUT;
    case ActionKind::kBackwardWeight:
      return YOKE_FORECAST_BACKWARD_WEIGHT;
    default:
      return YOKE_FORECAST_OTHER;
  }
}

int32_t axis_of(Traffic traffic) {
  switch (traffic) {
    case Traffic::kStages:
      return YOKE_PP;
    case Traffic::kShards:
      return YOKE_DP_SHARD;
    case Traffic::kReplicas:
      return YOKE_DP_REPLICATE;
    case Traffic::kNone:
      break;
  }
  return -1;
}

std::vector<YokeForecastAction> forecast_actions(const RankPlan& rank,
                                                 const std::vector<Action>& list,
                                                 const std::vector<ActionTime>& times) {
  const ActionCosts costs(rank.step, list, rank.costs);
  const std::vector<int64_t> unsharded = costs.unsharded_bytes();
  const std::vector<int64_t> activations = costs.activation_bytes();
  const std::vector<int64_t> temporary = costs.temporary_bytes();
  std::vector<YokeForecastAction> actions;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& a = list[i];
    const Payload payload = costs.payload_of(a);
    actions.push_back({.name = view(info_of(a.kind).name),
                       .kind = kind_of(a.kind),
                       .block = a.block < 0 ? -1 : rank.blocks[a.block],
                       .micro = a.micro,
                       .axis = axis_of(payload.traffic),
                       .payload_bytes = payload.bytes,
                       .begin = times[i].begin,
                       .end = times[i].end,
                       .unsharded_bytes = unsharded[i],
                       .activation_bytes = activations.empty() ? -1 : activations[i],
                       .temporary_bytes = temporary.empty() ? -1 : temporary[i]});
  }
  return actions;
}

std::vector<YokeBlockRange> stages_of(const RankPlan& rank) {
  std::vector<YokeBlockRange> stages;
  for (const OwnStage& stage : rank.step.stages())
    stages.push_back({rank.blocks[stage.first], stage.end - stage.first});
  return stages;
}

// Returns the number of elements of hidden matrices in the shard that has the fewest of them. They
// have one moment less than the other parameters. 0 unless the optimizer is Muon.
int64_t fewest_hidden(const RankPlan& rank, int shards, int64_t item) {
  std::vector<int64_t> counts(shards, 0);
  for (const Unit& unit : rank.units.units) {
    const FlatLayout layout(rank.model, unit, shards, item);
    for (const FlatLayout::Slot& slot : layout.slots()) {
      if (rank.model.params[slot.param].muon_rows == 0) continue;
      for (int s = 0; s < shards; ++s) counts[s] += layout.piece(slot, s).count;
    }
  }
  return *std::min_element(counts.begin(), counts.end());
}

}  // namespace

KeptBytes kept_bytes(const RankPlan& rank, const YokePlan& plan) {
  // As dtypes_of(): bf16 and fp16 runs update master copies in fp32.
  const int64_t compute = item_size(plan.param_dtype);
  const int64_t master = compute == 2 ? item_size(YOKE_F32) : compute;
  const int shards = rank.step.shards;
  int64_t trained = 0, frozen = 0, fp8 = 0;  // elements; fp8: those of shards that are kept in fp8
  for (const Unit& unit : rank.units.units) {
    const int64_t numel = FlatLayout(rank.model, unit, shards, compute).shard_numel();
    (unit.trainable ? trained : frozen) += numel;
    fp8 += unit.fp8 ? numel : 0;
  }
  // With exact sums, a trained parameter of two blocks has a second sum of gradients.
  int64_t seconds = 0;
  if (rank.step.exact_sums) {
    std::vector<int> users(rank.model.params.size(), 0);
    for (const std::vector<int>& block : rank.model.blocks) {
      for (const int p : block) ++users[p];
    }
    for (size_t p = 0; p < users.size(); ++p) {
      if (users[p] > 1 && rank.model.params[p].trainable) seconds += rank.model.params[p].numel;
    }
  }
  const char* kinds[2];
  const int moments = yoke_moments(plan.optimizer, kinds);
  const bool copies = master != compute && shards == 1;
  return {.params = (trained + frozen) * (master + (copies ? compute : 0)) + fp8,
          .grads = (trained + seconds) * item_size(plan.reduce_dtype),
          .optimizer = (trained * moments - fewest_hidden(rank, shards, compute)) * master};
}

double Forecast::bubble() const {
  const std::vector<double> idle = idle_times(timeline, lists);
  const double all = timeline.end * static_cast<double>(idle.size());
  return all == 0 ? 0 : std::accumulate(idle.begin(), idle.end(), 0.0) / all;
}

double Forecast::imbalance() const {
  const std::vector<double> idle = idle_times(timeline, lists);
  const double busiest = timeline.end - *std::min_element(idle.begin(), idle.end());
  const double busy = timeline.end * (1 - bubble());  // mean of all ranks
  return busiest == 0 ? 0 : 1 - busy / busiest;
}

Forecast forecast_step(const YokeModelSummary& model,
                       const YokePlan& plan,
                       const PtdOptions& options) {
  Forecast forecast{rank_plans(model, plan, options, make_pipeline(model, plan, options)), {}, {}};
  forecast.lists = checked_lists(steps_of(forecast.ranks));
  const std::vector<double> work = work_of_blocks(model);
  const auto duration = [&](int rank, const Action& a) {
    const RankPlan& own = forecast.ranks[rank];
    return work[own.blocks[a.block]] * forwards_of(a.kind, is_trained(own, a.block));
  };
  forecast.timeline = timeline_of(forecast.lists, duration);
  return forecast;
}

void report_forecast(const Forecast& forecast, const YokePlan& plan, PlanReport& report) {
  for (size_t r = 0; r < forecast.ranks.size(); ++r) {
    const RankPlan& rank = forecast.ranks[r];
    const KeptBytes kept = kept_bytes(rank, plan);
    const auto stages = stages_of(rank);
    const auto actions = forecast_actions(rank, forecast.lists[r], forecast.timeline.ranks[r]);
    report.forecast({.header = YOKE_HEADER(YokeForecast, YOKE_ID_FORECAST),
                     .pp = static_cast<int32_t>(r),
                     .reserved = 0,
                     .stages = stages.data(),
                     .num_stages = stages.size(),
                     .actions = actions.data(),
                     .num_actions = actions.size(),
                     .param_bytes = kept.params,
                     .grad_bytes = kept.grads,
                     .optimizer_bytes = kept.optimizer});
  }
}

}  // namespace yoke::ptd
