// Trains a small model in every arrangement of the engine, and compares it with a plain loop.
#include "tests/support/flat_training.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using yoke::testing::expect_plain;
using yoke::testing::Job;
using yoke::testing::job;
using yoke::testing::Options;
using yoke::testing::Outcome;

const Options kNone, kZero{{"zero_stage", "1"}};

TEST(Training, ReplicasTrainLikeThePlainLoop) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int accumulation : {1, 2}) expect_plain(job(ranks, 1, accumulation, kNone));
  }
}

// The scalar parameter of the model has an empty slice on every rank but the first.
TEST(Training, ZeroTrainsLikeThePlainLoop) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int accumulation : {1, 2}) expect_plain(job(1, ranks, accumulation, kZero));
  }
}

TEST(Training, OtherModelsAndOptimizersTrainLikeThePlainLoop) {
  yoke::testing::expect_plain_with_other_models_and_optimizers(job(1, 2, 2, kZero));
}

// Each of two micro-batches runs 5 blocks forward and backward, and 3 of them again.
TEST(Training, RecomputedLayersTrainLikeThePlainLoop) {
  Options options = kZero;
  EXPECT_EQ(yoke::testing::block_runs(job(1, 2, 2, options)), 2 * 10);
  options["recompute_layer"] = "true";
  expect_plain(job(1, 2, 2, options));
  EXPECT_EQ(yoke::testing::block_runs(job(1, 2, 2, options)), 2 * (10 + 3));
}

// Every rank has the whole gradient, so slices change neither norms nor updates. The test runs with
// MKL_CBWR=AUTO, because MKL's products otherwise depend on the addresses of the matrices in the
// last bit, on some processors.
TEST(Training, ZeroHasTheBitsOfReplicas) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Job replicas = job(3, 1, 2, kNone), zero = job(1, 3, 2, kZero);
    replicas.model.dtype = zero.model.dtype = dtype;
    const Outcome one = train(replicas), other = train(zero);
    for (int64_t s = 0; s < zero.steps; ++s) {
      EXPECT_EQ(other.loss[s], one.loss[s]) << c10::toString(dtype);
      EXPECT_EQ(other.grad_norm[s], one.grad_norm[s]) << c10::toString(dtype);
    }
  }
}

TEST(Training, Bf16WithFp32CopiesLearnsLikeThePlainLoop) {
  yoke::testing::expect_bf16_learns_like_plain(job(1, 3, 2, kZero));
}

TEST(Training, ResumesBitForBitFromALoadedState) {
  yoke::testing::expect_resumes_bit_for_bit(job(1, 3, 2, kZero));
}

TEST(Step, ThatFailsOrIsInfiniteChangesNothing) {
  for (const Job& j : {job(3, 1, 2, kNone), job(1, 3, 2, kZero)}) {
    yoke::testing::expect_failed_steps_are_forgotten(j);
    yoke::testing::expect_an_infinite_step_changes_nothing(j);
  }
}

TEST(Loss, MicroBatchesWithDifferentNumbersOfTargetsAreRefusedUnlessTheMeanOfMeansIsMeant) {
  yoke::testing::expect_uneven_is_refused(
      job(1, 2, 2, kZero),
      {"nanotron_compat.loss = \"per_token\"", "\"mean_of_means\" to train as nanotron does"});
}

TEST(Loss, IsTheMeanOfMeansInEveryArrangement) {
  yoke::testing::expect_mean_of_means(job(3, 1, 2, kNone));
  yoke::testing::expect_mean_of_means(job(1, 3, 2, kZero));
}

// The sums of three ranks are divided in fp32. A gradient in the dtype of the model is divided
// before, as PyTorch's DDP does. The order is visible in the last bits.
TEST(Reduction, DividesTheSumOrTheTermsAsNanotronDoes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kDouble}) {
    Job whole = job(3, 1, 1, kNone);
    whole.model.dtype = dtype;
    std::vector<ptd::testing::State> of_rank;
    for (int rank = 0; rank < 3; ++rank)
      of_rank.push_back(yoke::testing::gradients_of_part(whole, rank, 3));
    for (const auto& [key, gradient] : yoke::testing::first_gradients(whole)) {
      const at::Tensor &a = of_rank[0].at(key), &b = of_rank[1].at(key), &c = of_rank[2].at(key);
      const at::Tensor plain = dtype == at::kDouble ? a / 3 + b / 3 + c / 3 : (a + b + c) / 3;
      EXPECT_TRUE(at::equal(gradient, plain)) << key << " in " << dtype;
    }
  }
}

// The model has 137,000 trainable elements, which are more than a MiB in fp64 alone.
TEST(Buckets, AreLimitedInBytesOfParameters) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Job deep = job(2, 1, 1, {{"ddp_bucket_cap_mb", "1"}});
    deep.model.layers = 800;
    deep.model.dtype = dtype;
    deep.steps = 1;
    EXPECT_EQ(train(deep).counts.at("dp_replicate").calls, dtype == at::kDouble ? 2 : 1);
  }
}

TEST(WrapResult, AnnouncesTheBytesOfAStep) {
  yoke::testing::expect_announced_bytes(job(3, 1, 2, kNone), YOKE_DP_REPLICATE, "dp_replicate", 0);
  yoke::testing::expect_announced_bytes(job(1, 3, 2, kZero), YOKE_DP_SHARD, "dp_shard", 0);
}

TEST(Accumulator, AddsMicroBatchesInTheDtypeOfReductions) {
  for (const at::ScalarType sums : {at::kFloat, at::kBFloat16})
    yoke::testing::expect_adds_micro_batches_in(sums, job(1, 1, 1, kZero));
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
