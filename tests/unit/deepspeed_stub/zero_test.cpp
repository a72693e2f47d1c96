// Compares every ZeRO stage on 1, 2, 4 and 8 ranks with a plain loop. The model has a tied, a
// frozen and a scalar parameter, one without weight decay, and odd sizes.
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

// The bounds allow only for rounding, since sums are computed in a different order. A wrong
// gradient or update causes differences of 1e-7 and more.
constexpr double kFp64 = 1e-12;
constexpr double kFp32 = 2e-6;
// Activations, gradients and the model's parameters have a mantissa of 8 bits.
constexpr double kBf16 = 1e-2;

class Zero : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  Job job() const { return Job{}.at_stage(std::get<0>(GetParam())).on(std::get<1>(GetParam())); }
};

void expect_parity(const Job& job, double bound = kFp64) {
  const MockTrace oracle = plain_mock_loop(job.run);
  ASSERT_LT(oracle.loss.back(), 0.9 * oracle.loss.front());
  expect_close(train(job).trace, oracle, bound);
}

TEST_P(Zero, EqualsThePlainLoop) {
  expect_parity(job());
}

TEST_P(Zero, InSmallBuckets) {
  Job j = job();
  j.options.merge(small_buckets());
  expect_parity(j);
  j.options["overlap_comm"] = "false";
  j.options["stage3_prefetch_bucket_size"] = "0";
  expect_parity(j);
}

TEST_P(Zero, WithAccumulation) {
  for (const bool small : {false, true}) {
    Job j = job();
    j.run.micro_batch = 1;
    if (small) j.options.merge(small_buckets());
    expect_parity(j);
  }
}

TEST_P(Zero, UntiedWithoutClippingOrDecay) {
  Job j = job();
  j.run.tied = false;
  j.run.clip = j.run.weight_decay = 0;
  expect_parity(j);
}

TEST_P(Zero, WithEveryOptimizer) {
  for (const int32_t kind : {YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED, YOKE_LION}) {
    SCOPED_TRACE(kind);
    Job j = job();
    j.run.kind = kind;
    // In Adam's gradient, a larger decay leaves little to learn.
    j.run.weight_decay = 0.01;
    expect_parity(j);
    if (kind == YOKE_LION) expect_parity(j.on_cuda());
  }
}

TEST_P(Zero, InFp32) {
  Job j = job();
  j.run.dtype = YOKE_F32;
  expect_parity(j, kFp32);
}

TEST_P(Zero, InBf16WithFp32Masters) {
  Job j = job();
  j.run.dtype = YOKE_BF16;
  expect_parity(j, kBf16);
  j.run.micro_batch = 1;
  j.options.merge(small_buckets());
  expect_parity(j, kBf16);
}

TEST_P(Zero, WithOtherCollectives) {
  Job j = job();
  j.options["reduce_scatter"] = "false";
  j.options["allgather_partitions"] = "false";
  expect_parity(j);
}

INSTANTIATE_TEST_SUITE_P(Stages,
                         Zero,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(1, 2, 4, 8)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(ZeroStages, ZeroOneAndTwoAreBitEqualAndThreeToRounding) {
  for (const int ranks : {2, 4}) {
    const Outcome replicas = train(Job{}.on(ranks).at_stage(0));
    for (const int stage : {1, 2}) {
      const Outcome sliced = train(Job{}.on(ranks).at_stage(stage));
      EXPECT_EQ(sliced.trace.loss, replicas.trace.loss) << stage;
      EXPECT_EQ(sliced.trace.norm, replicas.trace.norm) << stage;
      EXPECT_EQ(sliced.state, replicas.state) << stage;
    }
    expect_close(train(Job{}.on(ranks).at_stage(3)).trace, replicas.trace, 1e-14);
  }
}

TEST(ZeroStages, TheSameHoldsInBf16) {
  Job job = Job{}.on(4);
  job.run.dtype = YOKE_BF16;
  const Outcome replicas = train(job.at_stage(0));
  EXPECT_EQ(replicas.state.at("embed.weight/param").dtype, YOKE_F32);
  for (const int stage : {1, 2}) EXPECT_EQ(train(job.at_stage(stage)).state, replicas.state);
  expect_close(train(job.at_stage(3)).trace, replicas.trace, 1e-3);
}

// ---- Bytes; the model has 133 trainable elements of 8 bytes, and 5 frozen ones ----

TEST(ZeroBytes, EachStageSlicesItsPartOfTheState) {
  for (const int ranks : {1, 2, 4}) {
    const int64_t padded = (133 + 2 * ranks - 1) / (2 * ranks) * (2 * ranks);
    const int64_t whole = 8 * padded, frozen = 8 * 6;  // padded to a multiple of 2
    const auto wrapped = [&](int stage) {
      Job job = Job{}.on(ranks).at_stage(stage);
      job.options["stage3_param_persistence_threshold"] = "0";
      return train(job).wrapped;
    };
    const YokeWrapResult w0 = wrapped(0), w1 = wrapped(1), w2 = wrapped(2), w3 = wrapped(3);
    for (const YokeWrapResult& w : {w0, w1, w2}) EXPECT_EQ(w.param_bytes, whole + frozen);
    EXPECT_EQ(w0.grad_bytes, whole);
    EXPECT_EQ(w1.grad_bytes, whole);
    EXPECT_EQ(w2.grad_bytes, whole / ranks);
    EXPECT_EQ(w0.optimizer_bytes, 2 * whole);
    EXPECT_EQ(w1.optimizer_bytes, 2 * whole / ranks);
    EXPECT_EQ(w2.optimizer_bytes, 2 * whole / ranks);
    int64_t slices = 0;
    for (const int64_t numel : {55, 35, 7, 35, 1}) slices += (numel + ranks - 1) / ranks;
    EXPECT_EQ(w3.param_bytes, 8 * (slices + (5 + ranks - 1) / ranks));
    EXPECT_EQ(w3.grad_bytes, 8 * slices);
    EXPECT_EQ(w3.optimizer_bytes, 16 * slices);
  }
}

TEST(ZeroBytes, LionHasOneMoment) {
  Job job = Job{}.on(2).at_stage(1);
  const int64_t two = train(job).wrapped.optimizer_bytes;
  job.run.kind = YOKE_LION;
  const Outcome lion = train(job);
  EXPECT_EQ(2 * lion.wrapped.optimizer_bytes, two);
  EXPECT_EQ(lion.state.count("embed.weight/exp_avg"), 1u);
  EXPECT_EQ(lion.state.count("embed.weight/exp_avg_sq"), 0u);
}

TEST(ZeroBytes, PersistentParametersAreKeptInAdditionToTheSlices) {
  Job job = Job{}.on(2).at_stage(3);
  job.options["stage3_param_persistence_threshold"] = "7";
  EXPECT_EQ(train(job).wrapped.param_bytes, 8 * (28 + 18 + 4 + 18 + 1 + 3) + 8 * (7 + 5 + 1));
  job.options["stage3_model_persistence_threshold"] =
      "8";  // bias (7) and gain (1) fit; scale (5), between them, does not
  EXPECT_EQ(train(job).wrapped.param_bytes, 8 * (28 + 18 + 4 + 18 + 1 + 3) + 8 * (7 + 1));
}

// Compares the bytes that collectives transfer in all steps. For each collective, the larger of its
// input and output is counted.
TEST(ZeroBytes, TrafficMatchesTheFormulas) {
  constexpr int64_t kSteps = MockRun::kSteps;
  for (const int64_t micros : {1, 2}) {
    Job job = Job{}.on(2);
    job.run.micro_batch = 4 / micros;
    const int64_t flat = 8 * 136 * kSteps;
    using Bytes = std::map<std::string, int64_t>;
    const auto bytes = [&](const Job& j) {
      Bytes all = train(j).bytes;
      EXPECT_EQ(all["scalars all_reduce"], 24 * kSteps);
      all.erase("scalars all_reduce");
      return all;
    };
    EXPECT_EQ(bytes(job.at_stage(0)), (Bytes{{"reduce all_reduce", flat}}));
    EXPECT_EQ(bytes(job.at_stage(1)),
              (Bytes{{"reduce reduce_scatter", flat}, {"gather all_gather", flat}}));
    EXPECT_EQ(bytes(job.at_stage(2)),
              (Bytes{{"reduce reduce_scatter", micros * flat}, {"gather all_gather", flat}}));

    Job sliced = job.at_stage(3);
    sliced.options["stage3_param_persistence_threshold"] = "0";
    const int64_t slices = 8 * 2 * (28 + 18 + 4 + 18 + 1) * kSteps, frozen = 8 * 2 * 3 * kSteps;
    // With the default reuse distance a parameter stays whole from its forward to its backward.
    EXPECT_EQ(bytes(sliced),
              (Bytes{{"reduce reduce_scatter", micros * slices},
                     {"gather all_gather", micros * (slices + frozen)}}));
    // With a reuse distance of 0, a parameter is freed after each use unless the very next use
    // needs it. That is so only for the backward of the head, which follows its forward.
    sliced.options["stage3_max_reuse_distance"] = "0";
    const int64_t embedding = 3 * 28, gain = 1, middle = 2 * (18 + 4 + 3 + 18);
    EXPECT_EQ(bytes(sliced)["gather all_gather"],
              micros * 8 * 2 * (embedding + gain + middle) * kSteps);
    // With max_live_parameters = 0, every parameter is freed after each use, and nothing is
    // prefetched.
    sliced.options.erase("stage3_max_reuse_distance");
    sliced.options["stage3_max_live_parameters"] = "0";
    EXPECT_EQ(bytes(sliced)["gather all_gather"],
              micros * 8 * 2 * (4 * 28 + 2 * gain + middle) * kSteps);
  }
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
