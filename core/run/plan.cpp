#include "core/run/plan.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string_view>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/plan.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

int32_t optimizer_kind(const TrainConfig& train) {
  if (train.optimizer == "sgd") return YOKE_SGD;
  if (train.optimizer == "lion") return YOKE_LION;
  if (train.optimizer == "muon") return YOKE_MUON;
  if (train.optimizer == "adam") return train.bias_correction ? YOKE_ADAM : YOKE_ADAM_UNCORRECTED;
  return train.bias_correction ? YOKE_ADAMW : YOKE_ADAMW_UNCORRECTED;
}

YokeOptimizer make_optimizer(const TrainConfig& train) {
  YokeOptimizer o{};
  o.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  o.kind = optimizer_kind(train);
  o.beta1 = train.betas[0];
  o.beta2 = train.betas[1];
  o.eps = train.eps;
  o.momentum = train.momentum;
  o.weight_decay = train.weight_decay;
  o.clip = train.clip;
  o.lr = train.lr;
  return o;
}

bool is_float(int32_t dtype) {
  return dtype == YOKE_F64 || dtype == YOKE_F32 || dtype == YOKE_BF16 || dtype == YOKE_F16;
}

}  // namespace

RunPlan::RunPlan(const RunConfig& config, int32_t world_size)
    : optimizer_(make_optimizer(config.train)), plan_{} {
  plan_.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  plan_.optimizer = &optimizer_;
  plan_.world_size = world_size;
  plan_.degree[YOKE_PP] = config.degrees.pp.value_or(0);
  plan_.degree[YOKE_DP_REPLICATE] = config.degrees.dp_replicate.value_or(0);
  plan_.degree[YOKE_DP_SHARD] = config.degrees.dp_shard.value_or(0);
  plan_.degree[YOKE_CP] = config.degrees.cp.value_or(0);
  plan_.degree[YOKE_TP] = config.degrees.tp.value_or(0);
  plan_.global_batch = static_cast<int32_t>(config.train.global_batch);
  plan_.micro_batch = static_cast<int32_t>(config.train.micro_batch.value_or(0));
  plan_.param_dtype = dtype_by_name(config.precision.param);
  if (config.precision.reduce) plan_.reduce_dtype = dtype_by_name(*config.precision.reduce);
}

std::vector<std::string> RunPlan::complete(int64_t max_micro_batch) {
  if (plan_.reduce_dtype == 0) plan_.reduce_dtype = yoke_default_reduce_dtype(plan_.param_dtype);
  std::vector<std::string> faults;
  std::string arithmetic;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan_.degree[axis] == 0) plan_.degree[axis] = 1;
    arithmetic += concat(axis > 0 ? " x " : "", Degrees::kKeys[axis], " ", plan_.degree[axis]);
  }
  const int64_t product = yoke_degree_product(plan_.degree);
  if (product != plan_.world_size) {
    faults.push_back(
        concat(arithmetic, " = ", product, ", but the run has ", plan_.world_size, " rank(s)") +
        concat("; start ", product, " ranks (--nproc ", product, ")") +
        ", or leave one degree unset for the backend to choose");
    return faults;  // the rules about the batch would only repeat this fault
  }
  const int64_t batch = plan_.global_batch;
  const int64_t ranks = data_ranks();
  if (batch % ranks != 0) {
    faults.push_back(
        concat("train.global_batch = ", batch, " cannot be split over ", ranks, " data ranks") +
        concat(" (dp_degree x dp_shards); allowed: a multiple of ", ranks) +
        "; nearest: " + nearest_text(yoke_nearest_multiples(batch, ranks)) +
        concat("; or use a number of data ranks that divides ", batch));
    return faults;
  }
  const std::vector<int64_t> legal = divisors(batch / ranks);
  if (plan_.micro_batch == 0) {
    for (int64_t d : legal) {
      if (d <= max_micro_batch) plan_.micro_batch = static_cast<int32_t>(d);
    }
  } else if (std::find(legal.begin(), legal.end(), plan_.micro_batch) == legal.end()) {
    faults.push_back(
        concat("train.micro_batch = ", plan_.micro_batch, " does not divide the ", batch / ranks) +
        concat(" sequences of a data rank (train.global_batch ", batch, " / ", ranks) +
        " data ranks); allowed: " + list_text(legal));
  }
  return faults;
}

std::vector<std::string> faults_of_backend(const YokePlan& asked,
                                           const YokeOptimizer& optimizer,
                                           const YokePlan& plan) {
  std::vector<std::string> faults;
  const auto keep = [&](std::string_view key, int64_t before, int64_t after, const auto& text) {
    if (before != 0 && after != before)
      faults.push_back(concat(key, " = ", text(before), ", which plan changed to ", text(after)));
  };
  const auto number = [](int64_t value) { return concat(value); };
  const auto dtype = [](int64_t value) {
    return std::string(dtype_name(static_cast<int32_t>(value))) + concat(" (", value, ")");
  };
  keep("the number of ranks", asked.world_size, plan.world_size, number);
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    keep(Degrees::kKeys[axis], asked.degree[axis], plan.degree[axis], number);
  keep("train.global_batch", asked.global_batch, plan.global_batch, number);
  keep("train.micro_batch", asked.micro_batch, plan.micro_batch, number);
  keep("precision.param", asked.param_dtype, plan.param_dtype, dtype);
  keep("precision.reduce", asked.reduce_dtype, plan.reduce_dtype, dtype);
  const bool same_optimizer = plan.optimizer == asked.optimizer &&
                              std::memcmp(plan.optimizer, &optimizer, sizeof optimizer) == 0;
  if (!same_optimizer) faults.push_back("plan changed the optimizer ([train] of the run file)");
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if (plan.degree[axis] < 0)
      faults.push_back(concat(Degrees::kKeys[axis], " became ", plan.degree[axis]));
  }
  if (plan.micro_batch < 0) faults.push_back(concat("train.micro_batch became ", plan.micro_batch));
  for (const auto& [key, value] : {std::pair("precision.param", plan.param_dtype),
                                   std::pair("precision.reduce", plan.reduce_dtype)}) {
    if (value != 0 && !is_float(value))
      faults.push_back(std::string(key) + " became " + dtype(value) +
                       "; allowed: fp64, fp32, bf16, fp16");
  }
  return faults;
}

int32_t RunPlan::data_ranks() const {
  return plan_.degree[YOKE_DP_REPLICATE] * plan_.degree[YOKE_DP_SHARD];
}

int32_t RunPlan::accumulation() const {
  return plan_.global_batch / (plan_.micro_batch * data_ranks());
}

std::string fingerprint(const YokePlan& plan) {
  std::ostringstream out;
  out.precision(17);
  out << "world " << plan.world_size;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
    out << ' ' << std::string(Degrees::kKeys[axis]) << ' ' << plan.degree[axis];
  const YokeOptimizer& o = *plan.optimizer;
  out << " global_batch " << plan.global_batch << " micro_batch " << plan.micro_batch << " param "
      << dtype_name(plan.param_dtype) << " reduce " << dtype_name(plan.reduce_dtype)
      << " optimizer " << o.kind << ' ' << o.beta1 << ' ' << o.beta2 << ' ' << o.eps << ' '
      << o.momentum << ' ' << o.weight_decay << " clip " << o.clip;
  return out.str();
}

int32_t dtype_by_name(const std::string& name) {
  for (int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16, YOKE_F16}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw Error(YOKE_INVALID_ARGUMENT, "precision '" + name + "'; allowed: fp64, fp32, bf16, fp16");
}

}  // namespace yoke
