// Trains a model with awkward parameters (tied, frozen and scalar ones, one that the loss does not
// depend on) in every arrangement of the engine, and compares it with a plain loop.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ptd::testing::count_targets;
using ptd::testing::Job;
using ptd::testing::Outcome;
using ptd::testing::TinyModel;
using ptd::testing::TinySamples;
using ::testing::HasSubstr;
using Options = std::map<std::string, std::string>;

const Options kOverlap{{"overlap_grad_reduce", "true"}, {"ddp_bucket_size", "100"}};
const Options kDistributed{{"use_distributed_optimizer", "true"}};
const Options kBoth{{"use_distributed_optimizer", "true"},
                    {"overlap_grad_reduce", "true"},
                    {"overlap_param_gather", "true"},
                    {"ddp_bucket_size", "100"}};

// Returns a job; all given options count as set by the user.
Job job(int replicas, int shards, int accumulation, Options options) {
  Job job;
  job.replicas = replicas;
  job.shards = shards;
  job.accumulation = accumulation;
  job.global_batch = 24;
  job.steps = 10;
  for (const auto& [key, value] : options) job.given.push_back(key);
  job.options = std::move(options);
  return job;
}

// The bounds allow only for rounding: sums are made in another order.
void expect_plain(const Job& job, const Outcome& plain) {
  const Outcome got = train(job);
  const std::string what = std::to_string(job.replicas) + " x " + std::to_string(job.shards) +
                           " ranks, accumulation " + std::to_string(job.accumulation);
  for (int64_t s = 0; s < job.steps; ++s) {
    EXPECT_NEAR(got.loss[s] / plain.loss[s], 1, 1e-12) << what << ", step " << s + 1;
    EXPECT_NEAR(got.grad_norm[s] / plain.grad_norm[s], 1, 1e-10) << what << ", step " << s + 1;
  }
  EXPECT_NEAR(got.eval_loss / plain.eval_loss, 1, 1e-12) << what;
  for (const auto& [key, value] : plain.state)
    EXPECT_TRUE(at::allclose(got.state.at(key), value, 1e-10, 1e-12)) << key << ", " << what;
}
void expect_plain(const Job& job) {
  expect_plain(job, train_plain(job));
}

TEST(Training, ReplicasTrainLikeThePlainLoop) {
  for (const Options& options : {Options{}, kOverlap}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int accumulation : {1, 2}) expect_plain(job(ranks, 1, accumulation, options));
    }
  }
}

TEST(Training, TheDistributedOptimizerTrainsLikeThePlainLoop) {
  for (const Options& options : {kDistributed, kBoth}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const int accumulation : {1, 2}) expect_plain(job(1, ranks, accumulation, options));
    }
  }
}

TEST(Training, SeveralInstancesTrainLikeThePlainLoop) {
  for (Options options : {kDistributed, kBoth}) {
    options["num_distributed_optimizer_instances"] = "2";
    expect_plain(job(2, 2, 2, options));
    options["num_distributed_optimizer_instances"] = "3";
    expect_plain(job(3, 2, 1, options));
  }
}

TEST(Training, OtherModelsAndOptimizersTrainLikeThePlainLoop) {
  Job untied = job(1, 2, 2, kBoth);
  untied.model.tied = false;
  expect_plain(untied);
  Job frozen = job(1, 2, 2, kBoth);
  frozen.model.frozen_embedding = true;
  expect_plain(frozen);
  Job sgd = job(1, 2, 2, kBoth);
  sgd.optimizer = YOKE_SGD;
  sgd.momentum = 0.9;
  expect_plain(sgd);
}

TEST(Training, RecomputedLayersTrainLikeThePlainLoop) {
  for (const char* method : {"uniform", "block"}) {
    for (const char* layers : {"1", "2", "9"}) {
      Options options = kBoth;
      options["recompute_granularity"] = "full";
      options["recompute_method"] = method;
      options["recompute_num_layers"] = layers;
      expect_plain(job(1, 2, 2, options));
    }
  }
}

TEST(Training, EveryArrangementOfOneWorldHasTheSameBits) {
  const Outcome one = train(job(1, 2, 2, kDistributed));
  for (const Options& options : {kBoth,
                                 Options{{"use_distributed_optimizer", "true"},
                                         {"overlap_grad_reduce", "true"},
                                         {"ddp_num_buckets", "3"}}}) {
    const Outcome other = train(job(1, 2, 2, options));
    for (const auto& [key, value] : one.state)
      EXPECT_TRUE(at::allclose(other.state.at(key), value, 1e-12, 1e-14)) << key;
  }
}

// Activations and parameters of the model have a mantissa of 8 bits, so losses agree to about 1e-2.
// Without the fp32 copies, or if they did not reach the model, the loss would not fall as it does.
TEST(Training, Bf16WithFp32CopiesLearnsLikeThePlainLoop) {
  for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    Job half = job(1, 3, 2, kBoth);
    half.model.dtype = at::kBFloat16;
    half.reduce = reduce;
    half.lr = 3e-2;
    half.steps = 20;
    Job wide = half;
    wide.model.dtype = at::kDouble;
    const Outcome got = train(half), plain = train_plain(wide);
    ASSERT_LT(plain.loss.back(), 0.9 * plain.loss.front());
    for (int64_t s = 0; s < half.steps; ++s) EXPECT_NEAR(got.loss[s] / plain.loss[s], 1, 2e-2) << s;
    EXPECT_EQ(got.state.at("param embed.weight").scalar_type(), at::kFloat);
  }
}

TEST(Training, ResumesBitForBitFromALoadedState) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Job whole = job(1, 3, 2, kBoth);
    whole.model.dtype = dtype;
    Job first = whole, rest = whole;
    first.steps = 4;
    rest.first_step = 5;
    rest.steps = 6;
    const Outcome all = train(whole), begin = train(first);
    const Outcome end = train(rest, &begin.state);
    for (int64_t s = 0; s < rest.steps; ++s) {
      EXPECT_EQ(end.loss[s], all.loss[s + 4]) << c10::toString(dtype);
      EXPECT_EQ(end.grad_norm[s], all.grad_norm[s + 4]) << c10::toString(dtype);
    }
    for (const auto& [key, value] : all.state)
      EXPECT_TRUE(at::equal(end.state.at(key), value)) << key << ", " << c10::toString(dtype);
  }
}

TEST(Loss, MicroBatchesWithDifferentNumbersOfTargetsAreRefusedUnlessTheMeanOfMeansIsMeant) {
  Job even = job(1, 2, 2, kBoth);
  even.options["loss"] = "even";
  try {
    train(even);
    FAIL() << "the micro-batches differ in their number of targets";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("--calculate-per-token-loss"));
    EXPECT_THAT(e.what(), HasSubstr("megatron_compat.loss = \"mean_of_means\""));
  }
  Job means = even;
  means.options["loss"] = "mean_of_means";
  const Outcome of_means = train(means), plain = train_plain(means);
  EXPECT_NEAR(of_means.loss[0] / plain.loss[0], 1, 1e-12);  // both report the loss per token
  EXPECT_GT(std::abs(of_means.grad_norm[0] / plain.grad_norm[0] - 1), 1e-4);
}

// Returns the gradient norm of the mean of the means of the micro-batches of the first step.
double plain_norm_of_means(const Job& job) {
  TinyModel::Params params = job.model.plain_params();
  const int64_t micros = int64_t{job.data_ranks()} * job.accumulation;
  const int64_t size = job.global_batch / micros;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t m = 0; m < micros; ++m) {
    const TinySamples s(m * size, size);
    loss = loss + job.model.plain_loss(params, s.tokens, s.targets) / count_targets(s.targets);
  }
  torch::autograd::backward({loss / micros});
  double squares = 0;
  for (const auto& [name, p] : params) {
    if (p.grad().defined()) squares += p.grad().square().sum().item<double>();
  }
  return std::sqrt(squares);
}

TEST(Loss, IsTheMeanOfMeansInEveryArrangement) {
  for (Options options : {Options{}, kDistributed, kBoth}) {
    options["loss"] = "mean_of_means";
    const bool distributed = options.count("use_distributed_optimizer") > 0;
    for (const bool average : {false, true}) {
      if (average) options["ddp_average_in_collective"] = "true";
      const Job means = distributed ? job(1, 3, 2, options) : job(3, 1, 2, options);
      EXPECT_NEAR(train(means).grad_norm[0] / plain_norm_of_means(means), 1, 1e-12);
    }
  }
  Options instances = kBoth;
  instances["loss"] = "mean_of_means";
  instances["num_distributed_optimizer_instances"] = "2";
  const Job means = job(2, 2, 2, instances);
  EXPECT_NEAR(train(means).grad_norm[0] / plain_norm_of_means(means), 1, 1e-12);
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
