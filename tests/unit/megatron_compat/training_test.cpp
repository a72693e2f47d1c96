// Trains a small model in every arrangement of the engine, and compares it with a plain loop.
#include <cstdlib>

#include "tests/support/flat_training.hpp"

namespace yoke::megatron_compat::testing {
namespace {

// Otherwise MKL may round a product in another way if its operands are aligned differently, and the
// arrangements place parameters at different offsets. It was seen on an AMD EPYC.
[[maybe_unused]] const int kReproducible = setenv("MKL_CBWR", "COMPATIBLE", 1);

using yoke::testing::expect_mean_of_means;
using yoke::testing::expect_plain;
using yoke::testing::Job;
using yoke::testing::job;
using yoke::testing::Options;
using yoke::testing::Outcome;

const Options kOverlap{{"overlap_grad_reduce", "true"}, {"ddp_bucket_size", "100"}};
const Options kDistributed{{"use_distributed_optimizer", "true"}};
const Options kBoth{{"use_distributed_optimizer", "true"},
                    {"overlap_grad_reduce", "true"},
                    {"overlap_param_gather", "true"},
                    {"ddp_bucket_size", "100"}};
const Options kThreeBuckets{{"use_distributed_optimizer", "true"},
                            {"overlap_grad_reduce", "true"},
                            {"ddp_num_buckets", "3"}};

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
  yoke::testing::expect_plain_with_other_models_and_optimizers(job(1, 2, 2, kBoth));
}

// Each of two micro-batches runs 5 blocks forward and backward, and recomputed ones again.
TEST(Training, RecomputedLayersTrainLikeThePlainLoop) {
  const struct {
    const char* method;
    const char* layers;
    int recomputed;  // blocks, of which 3 are layers
  } cases[] = {
      {"uniform", "1", 3},
      {"uniform", "2", 3},
      {"uniform", "9", 3},
      {"block", "1", 1},
      {"block", "2", 2},
      {"block", "9", 3},
  };
  for (const auto& c : cases) {
    Options options = kBoth;
    options["recompute_granularity"] = "full";
    options["recompute_method"] = c.method;
    options["recompute_num_layers"] = c.layers;
    expect_plain(job(1, 2, 2, options));
    EXPECT_EQ(yoke::testing::block_runs(job(1, 2, 2, options)), 2 * (10 + c.recomputed));
  }
}

// How buckets and shards cut the gradient changes neither a sum over ranks nor an update by SGD.
TEST(Training, SgdWithoutClippingHasTheSameBitsInEveryArrangement) {
  for (const int ranks : {2, 3}) {
    const auto outcome_of = [&](const Options& options) {
      const bool distributed = options.count("use_distributed_optimizer") > 0;
      Job sgd = distributed ? job(1, ranks, 2, options) : job(ranks, 1, 2, options);
      sgd.optimizer = YOKE_SGD;
      sgd.momentum = 0.9;
      sgd.clip = 0;
      return train(sgd);
    };
    const Outcome one = outcome_of(kDistributed);
    for (const Options& options : {kBoth, kThreeBuckets, kOverlap, Options{}}) {
      const Outcome other = outcome_of(options);
      EXPECT_EQ(other.loss, one.loss);
      for (const auto& [key, value] : one.state)
        EXPECT_TRUE(at::equal(other.state.at(key), value)) << key << ", " << ranks << " ranks";
    }
  }
}

// Squares are added up shard by shard, so the norm, by which gradients are clipped, depends on the
// cuts in its last bits. The fused AdamW rounds elements at the end of a range in another way than
// those before, which it processes several at a time.
TEST(Training, AdamWDiffersByRoundingAloneBetweenArrangements) {
  const Outcome one = train(job(1, 2, 2, kDistributed));
  for (const Options& options : {kBoth, kThreeBuckets}) {
    const Outcome other = train(job(1, 2, 2, options));
    for (const auto& [key, value] : one.state)
      EXPECT_TRUE(at::allclose(other.state.at(key), value, 1e-12, 1e-14)) << key;
  }
}

TEST(Training, Bf16WithFp32CopiesLearnsLikeThePlainLoop) {
  yoke::testing::expect_bf16_learns_like_plain(job(1, 3, 2, kBoth));
}

TEST(Training, ResumesBitForBitFromALoadedState) {
  yoke::testing::expect_resumes_bit_for_bit(job(1, 3, 2, kBoth));
}

TEST(Step, ThatFailsOrIsInfiniteChangesNothing) {
  Options instances = kBoth;
  instances["num_distributed_optimizer_instances"] = "2";
  for (const Job& j : {job(3, 1, 2, kOverlap), job(2, 2, 2, instances)}) {
    yoke::testing::expect_failed_steps_are_forgotten(j);
    yoke::testing::expect_an_infinite_step_changes_nothing(j);
  }
}

TEST(Loss, MicroBatchesWithDifferentNumbersOfTargetsAreRefusedUnlessTheMeanOfMeansIsMeant) {
  yoke::testing::expect_uneven_is_refused(
      job(1, 2, 2, kBoth),
      {"--calculate-per-token-loss", "megatron_compat.loss = \"mean_of_means\""});
}

TEST(Loss, IsTheMeanOfMeansInEveryArrangement) {
  for (Options options : {Options{}, kDistributed, kBoth}) {
    const bool distributed = options.count("use_distributed_optimizer") > 0;
    for (const bool average : {false, true}) {
      if (average) options["ddp_average_in_collective"] = "true";
      expect_mean_of_means(distributed ? job(1, 3, 2, options) : job(3, 1, 2, options));
    }
  }
  Options instances = kBoth;
  instances["num_distributed_optimizer_instances"] = "2";
  expect_mean_of_means(job(2, 2, 2, instances));
}

// With overlap_param_gather the last update is gathered in the next forward.
TEST(WrapResult, AnnouncesTheBytesOfAStep) {
  using yoke::testing::expect_announced_bytes;
  expect_announced_bytes(job(3, 1, 2, kOverlap), YOKE_DP_REPLICATE, "dp_replicate", 0);
  expect_announced_bytes(job(1, 3, 2, kDistributed), YOKE_DP_SHARD, "dp_shard", 0);
  const YokeWrapResult wrapped = train(job(1, 3, 2, kBoth)).wrapped;
  const int64_t gather = wrapped.axis_bytes[YOKE_DP_SHARD] - wrapped.grad_bytes;
  EXPECT_GT(gather, 0);
  expect_announced_bytes(job(1, 3, 2, kBoth), YOKE_DP_SHARD, "dp_shard", gather);
  Options instances = kDistributed;
  instances["num_distributed_optimizer_instances"] = "2";
  expect_announced_bytes(job(2, 2, 2, instances), YOKE_DP_SHARD, "dp_shard", 0);
  expect_announced_bytes(job(2, 2, 2, instances), YOKE_DP_REPLICATE, "dp_replicate", 0);
}

TEST(Accumulator, AddsMicroBatchesInTheDtypeOfReductions) {
  for (const at::ScalarType sums : {at::kFloat, at::kBFloat16})
    yoke::testing::expect_adds_micro_batches_in(sums, job(1, 1, 1, kBoth));
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
