// Compares the forecasts of plan with what the ranks report in wrap_model, which comes from the
// tensors that exist.
#include "plugins/ptd/forecast.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "core/backend/forecast.hpp"
#include "tests/unit/ptd/rig.hpp"
#include "yoke/fp8_params.hpp"

namespace yoke::ptd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Blocks of the tiny model that say what they keep, so that activations are known.
BlockList blocks_of(const Job& job) {
  BlockList blocks = job.model.blocks();
  for (size_t b = 0; b < blocks.blocks.size(); ++b)
    blocks.costs.push_back({static_cast<int64_t>(1000 + b), static_cast<int64_t>(100 + b)});
  if (job.options.count("fp8_gather") > 0) {
    for (const char* name : {"mlp0.up", "mlp0.down", "mlp2.up", "mlp2.scale"})
      blocks.fp8_uses[name] = Fp8Use::kOneScale;
  }
  return blocks;
}

StepForecast forecast_of(const Job& job) {
  const YokeOptimizer optimizer = optimizer_of(job);
  YokePlan plan = plan_of(job, optimizer);
  TorchModelHost model(blocks_of(job), plan.param_dtype, TinyModel::kSeed, true);
  const ForecastCollector collector(nullptr);
  const auto texts = ask_plan(model.summary(), job.options, plan, job.given, collector.extension());
  for (const std::string& text : texts) EXPECT_THAT(text, HasSubstr("note: ")) << text;
  return collector.result(plan, model.summary());
}

int64_t largest(const RankForecast& rank, int64_t ForecastAction::*bytes) {
  int64_t most = 0;
  for (const ForecastAction& a : rank.actions) most = std::max(most, a.*bytes);
  return most;
}

int64_t payload(const RankForecast& rank, int axis) {
  int64_t sum = 0;
  for (const ForecastAction& a : rank.actions) sum += a.axis == axis ? a.payload_bytes : 0;
  return sum;
}

void expect_as_wrapped(const Job& job) {
  const StepForecast forecast = forecast_of(job);
  ASSERT_EQ(forecast.ranks.size(), static_cast<size_t>(job.pp));
  std::mutex mutex;
  on_ranks(yoke::Mesh({job.pp, job.replicas, job.shards, 1, 1}), [&](const Rank& rank) {
    const YokeOptimizer optimizer = optimizer_of(job);
    const YokePlan plan = plan_of(job, optimizer);
    TorchModelHost model(blocks_of(job), plan.param_dtype, TinyModel::kSeed, true);
    const Session session(job, rank.host, model.model());
    const std::lock_guard lock(mutex);
    const RankForecast& predicted = forecast.ranks[rank.host.rank / job.data_ranks()];
    const YokeWrapResult& wrapped = session.wrapped;
    EXPECT_EQ(predicted.param_bytes, wrapped.param_bytes);
    EXPECT_EQ(predicted.grad_bytes, wrapped.grad_bytes);
    // The shards of a rank may have fewer hidden matrices than those of another.
    EXPECT_GE(predicted.optimizer_bytes, wrapped.optimizer_bytes);
    if (job.optimizer != YOKE_MUON || job.shards == 1) {
      EXPECT_EQ(predicted.optimizer_bytes, wrapped.optimizer_bytes);
    }
    EXPECT_EQ(largest(predicted, &ForecastAction::unsharded_bytes), wrapped.unsharded_bytes);
    EXPECT_EQ(largest(predicted, &ForecastAction::activation_bytes), wrapped.activation_bytes);
    EXPECT_GT(wrapped.activation_bytes, 0);
    for (const int axis : {YOKE_PP, YOKE_DP_REPLICATE, YOKE_DP_SHARD})
      EXPECT_EQ(payload(predicted, axis), wrapped.axis_bytes[axis]) << axis;
  });
}

TEST(Forecast, SaysWhatWrapModelReportsOnEveryRank) {
  for (const int pp : {1, 2}) {
    for (const auto& [replicas, shards] : {std::pair(1, 1), {1, 2}, {2, 1}, {2, 2}}) {
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
        Job job;
        job.pp = pp;
        job.replicas = replicas;
        job.shards = shards;
        job.accumulation = 2;
        job.model.dtype = dtype;
        SCOPED_TRACE(concat("pp ", pp, " replicas ", replicas, " shards ", shards, " dtype ") +
                     c10::toString(dtype));
        expect_as_wrapped(job);
      }
    }
  }
}

TEST(Forecast, KnowsOptimizersAndOptions) {
  Job job;
  job.pp = job.shards = 2;
  job.accumulation = 2;
  for (const double momentum : {0.0, 0.9}) {
    job.optimizer = YOKE_SGD;
    job.momentum = momentum;
    expect_as_wrapped(job);
  }
  for (const int32_t kind : {YOKE_ADAM, YOKE_LION}) {
    job.optimizer = kind;
    expect_as_wrapped(job);
  }
  job.optimizer = YOKE_MUON;
  for (const int shards : {1, 2}) {
    job.shards = shards;
    expect_as_wrapped(job);
  }
  job.optimizer = YOKE_LION;
  job.options["activation_checkpoint"] = "full";
  expect_as_wrapped(job);
  job.options["pp_schedule"] = "zb_h1";
  expect_as_wrapped(job);
  job.shards = 1;
  for (const int pp : {1, 2}) {
    job.pp = pp;
    job.options["exact_sums"] = "true";
    expect_as_wrapped(job);
  }
}

TEST(Forecast, KnowsGathersInFp8) {
  for (const int pp : {1, 2}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      Job job;
      job.pp = pp;
      job.shards = 2;
      job.accumulation = 2;
      job.model.dtype = dtype;
      SCOPED_TRACE(concat("pp ", pp, " dtype ") + c10::toString(dtype));
      job.options["fp8_gather"] = "true";
      expect_as_wrapped(job);
      const StepForecast forecast = forecast_of(job);
      const std::vector<ForecastAction>& actions = forecast.ranks[0].actions;
      EXPECT_EQ(std::count_if(actions.begin(),
                              actions.end(),
                              [](const ForecastAction& a) { return a.name == "ReduceScales"; }),
                1);
      job.options["reshard_after_forward"] = "false";
      expect_as_wrapped(job);
    }
  }
}

// A step of several micro-batches keeps rounded weights that are whole and not distributed.
TEST(Forecast, KnowsKeptRoundings) {
  Job job;
  job.options["fp8_gather"] = "false";
  const TorchModelHost model(blocks_of(job), YOKE_F32, TinyModel::kSeed, true);
  const int64_t all = kept_rounding_bytes(model.summary());
  ASSERT_GT(all, 0);
  const auto unsharded = [&] {
    expect_as_wrapped(job);
    int64_t sum = 0;
    for (const RankForecast& rank : forecast_of(job).ranks)
      sum += largest(rank, &ForecastAction::unsharded_bytes);
    return sum;
  };
  EXPECT_EQ(unsharded(), 0);
  job.accumulation = 2;
  EXPECT_EQ(unsharded(), all);
  job.pp = 2;
  EXPECT_EQ(unsharded(), all);
  job.pp = 1;
  job.shards = 2;
  const int64_t with_fp8 = unsharded();
  job.options.erase("fp8_gather");
  EXPECT_EQ(unsharded(), with_fp8);
}

// What a pass needs grows with the micro-batch, except for gradients of parameters.
TEST(Forecast, HasTheTemporaryMemoryThatBlocksReport) {
  Job job;
  const YokeOptimizer optimizer = optimizer_of(job);
  YokePlan plan = plan_of(job, optimizer);
  BlockList blocks = blocks_of(job);
  const auto backwards = [&] {
    BlockList copy = blocks;
    TorchModelHost model(std::move(copy), plan.param_dtype, TinyModel::kSeed, true);
    const ForecastCollector collector(nullptr);
    ask_plan(model.summary(), job.options, plan, job.given, collector.extension());
    std::vector<int64_t> bytes;
    for (const ForecastAction& a : collector.result(plan, model.summary()).ranks[0].actions) {
      if (a.kind == YOKE_FORECAST_BACKWARD) bytes.push_back(a.temporary_bytes);
    }
    return bytes;
  };
  EXPECT_EQ(backwards().front(), -1);
  // More than the last block frees by its end.
  constexpr int64_t kEach = 100000, kOnce = 7;
  for (BlockCosts& costs : blocks.costs) {
    costs.pass_bytes = {{YOKE_FORECAST_BACKWARD, 0, kEach, kOnce},
                        {YOKE_FORECAST_BACKWARD, 0, 1, 2},
                        {YOKE_FORECAST_FORWARD, 0, 2 * kEach, 0}};
  }
  const int64_t last = static_cast<int64_t>(blocks.costs.size()) - 1;
  // It frees what it has kept and its output, and returns the gradient of its input.
  const int64_t freed = plan.micro_batch * ((1000 + last) + (100 + last) - (100 + last - 1));
  EXPECT_EQ(backwards().front(), plan.micro_batch * kEach + kOnce + freed);
}

// Four ranks with one micro-batch compute one after the other.
TEST(Forecast, ALargeBubbleIsNoted) {
  Job job;
  job.pp = 4;
  job.model.layers = 6;
  job.model.tied = false;
  const YokeOptimizer optimizer = optimizer_of(job);
  YokePlan plan = plan_of(job, optimizer);
  EXPECT_THAT(ask_plan(job, plan),
              ::testing::Contains(HasSubstr(
                  "% of a step with 1 micro-batch on 4 pp ranks; `yoke plan --schedule` shows")));
  const double with_one = forecast_of(job).bubble();
  job.accumulation = 8;
  const double with_eight = forecast_of(job).bubble();
  EXPECT_GT(with_one, 0.3);
  EXPECT_LT(with_eight, with_one - 0.1);
}

}  // namespace
}  // namespace yoke::ptd::testing
