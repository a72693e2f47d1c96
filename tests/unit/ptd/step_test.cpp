// Tests what a step costs, and what happens when it fails.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

int64_t padded(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Counts the elements of the tiny model's two buffers. The trainable parameters are embed.weight
// [13, 7], head.gain (a scalar), head.unused [9] and, in each of three layers, up [11, 7], bias
// [11] and down [7, 11]. The frozen ones are the scales [7], one in each layer. Every parameter and
// every shard is padded to a cache line.
struct Elements {
  explicit Elements(int shards, int64_t item_size = 8) {
    const int64_t line = 64 / item_size;
    for (int64_t n : {91, 1, 9, 77, 11, 77, 77, 11, 77, 77, 11, 77}) trainable += padded(n, line);
    trainable = padded(trainable, line * shards);
    frozen = padded(3 * padded(7, line), line * shards);
  }
  int64_t trainable = 0, frozen = 0;
};

Job one_unit(int replicas, int shards) {
  Job job;
  job.replicas = replicas;
  job.shards = shards;
  job.options["unit_bytes"] = "1000000";
  job.steps = 5;
  return job;
}

TEST(Step, CountedBytesAreThoseOfTheLayout) {
  for (int shards : {2, 4}) {
    SCOPED_TRACE(shards);
    const Outcome outcome = train(one_unit(1, shards));
    const auto [trainable, frozen] = Elements(shards);
    const CommCount sharded = outcome.counts.at("dp_shard");
    // There is one all-gather of each buffer and one reduce-scatter, because the only unit stays
    // whole between forward and backward.
    EXPECT_EQ(sharded.calls, 5 * 3);
    EXPECT_EQ(sharded.bytes, 5 * 8 * (2 * trainable + frozen));
    EXPECT_EQ(outcome.counts.at("world").calls, 5);
    EXPECT_EQ(outcome.counts.at("world").bytes, 5 * 3 * 8);
    EXPECT_EQ(outcome.wrapped.param_bytes, 8 * (trainable + frozen) / shards);
    EXPECT_EQ(outcome.wrapped.grad_bytes, 8 * trainable / shards);
    EXPECT_EQ(outcome.wrapped.optimizer_bytes, 2 * 8 * trainable / shards);
  }
}

// With exact sums the norm needs a number for each parameter, and a tied parameter a second
// gradient buffer.
TEST(Step, ExactSumsCostANumberForEachParameterAndABufferForEachTiedOne) {
  for (const bool tied : {false, true}) {
    Job job = one_unit(1, 1);
    job.pp = 2;
    job.accumulation = 2;
    job.model.tied = tied;
    const int64_t params = 4 * job.model.layers + (tied ? 3 : 4);
    for (const int pp : {1, 2}) {
      job.pp = pp;
      job.options["exact_sums"] = "false";
      const Outcome plain = train(job);
      job.options["exact_sums"] = "true";
      const Outcome exact = train(job);
      const int64_t second = tied && pp == 1 ? TinyModel::kVocab * TinyModel::kDim * 8 : 0;
      EXPECT_EQ(exact.wrapped.grad_bytes - plain.wrapped.grad_bytes, second);
      if (pp == 1) continue;
      EXPECT_EQ(exact.counts.at("world").calls, plain.counts.at("world").calls);
      EXPECT_EQ(exact.counts.at("world").bytes - plain.counts.at("world").bytes, 5 * 8 * params);
    }
  }
}

// Units are gathered in the compute type, reduced in the reduce type and kept in fp32.
TEST(Step, BytesFollowTheDtypes) {
  for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    Job job = one_unit(2, 2);
    job.model.dtype = at::kBFloat16;
    job.reduce = reduce;
    const auto item = static_cast<int64_t>(c10::elementSize(reduce));
    const auto [trainable, frozen] = Elements(2, 2);
    const Outcome hsdp = train(job);
    EXPECT_EQ(hsdp.counts.at("dp_shard").bytes, 5 * (2 * (trainable + frozen) + item * trainable));
    EXPECT_EQ(hsdp.counts.at("dp_replicate").bytes, 5 * item * trainable / 2);
    EXPECT_EQ(hsdp.wrapped.param_bytes, 4 * (trainable + frozen) / 2);
    EXPECT_EQ(hsdp.wrapped.grad_bytes, item * trainable / 2);
    EXPECT_EQ(hsdp.wrapped.optimizer_bytes, 2 * 4 * trainable / 2);

    job.shards = 1;
    const Elements whole(1, 2);
    const Outcome ddp = train(job);
    EXPECT_EQ(ddp.counts.at("dp_replicate").bytes, 5 * item * whole.trainable);
    EXPECT_EQ(ddp.wrapped.param_bytes, (4 + 2) * (whole.trainable + whole.frozen))
        << "the copies in bf16 stay";
  }
}

TEST(Step, ReplicasReduceTheirShardOncePerStep) {
  Job job = one_unit(2, 2);
  job.accumulation = 2;
  const Outcome outcome = train(job);
  EXPECT_EQ(outcome.counts.at("dp_replicate").calls, 5);
  EXPECT_EQ(outcome.counts.at("dp_replicate").bytes, 5 * 8 * Elements(2).trainable / 2);
}

TEST(Step, UnshardedAccumulationReducesOncePerStep) {
  Job job = one_unit(1, 2);
  job.accumulation = 4;
  const int64_t often = train(job).counts.at("dp_shard").bytes;
  job.options["accumulate"] = "unsharded";
  const int64_t once = train(job).counts.at("dp_shard").bytes;
  EXPECT_EQ(often - once, 5 * 3 * 8 * Elements(2).trainable);
}

int32_t code_of(const std::function<void()>& f, std::string* text = nullptr) {
  try {
    f();
  } catch (const Error& e) {
    if (text != nullptr) *text = e.what();
    return e.code();
  }
  return YOKE_OK;
}

TEST(Step, AfterABadTokenTheModelIsAsBefore) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    const Job job;
    Session session(job, rank.host, model.model());
    TinyBatch good(job, 0, 0), bad(job, 0, 0);
    bad.micros()[0].tokens.fill_(99);
    const double before = session.step(good.get(), 1, 0, YOKE_STEP_FORWARD_ONLY).loss_sum;
    std::string text;
    EXPECT_EQ(code_of([&] { session.step(bad.get(), 1, 1e-3); }, &text), YOKE_INTERNAL);
    EXPECT_THAT(text, ::testing::HasSubstr("out of range"));
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("Exception raised from")));
    EXPECT_EQ(session.step(good.get(), 1, 0, YOKE_STEP_FORWARD_ONLY).loss_sum, before);
  });
}

// The step fails after the first backward has added to the second gradient buffer of the tied
// parameter.
TEST(Step, ExactSumsForgetTheGradientsOfAFailedStep) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Job job;
    job.accumulation = 2;
    job.options["exact_sums"] = "true";
    Session session(job, rank.host, model.model());
    TinyBatch good(job, 0, 0), bad(job, 0, 0);
    bad.micros()[1].tokens.fill_(99);
    const double before = session.step(good.get(), 1, 0).grad_norm;
    EXPECT_EQ(code_of([&] { session.step(bad.get(), 1, 0); }), YOKE_INTERNAL);
    EXPECT_EQ(session.step(good.get(), 1, 0).grad_norm, before);
  });
}

TEST(Step, EvaluationChangesNothing) {
  Job job;
  job.steps = 4;
  const Outcome plain = train(job);
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(job.model.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Session session(job, rank.host, model.model());
    for (int64_t step = 1; step <= 4; ++step) {
      const TinyBatch batch(job, (step - 1) * job.global_batch, 0);
      session.step(batch.get(), step, 1, YOKE_STEP_FORWARD_ONLY);
      const YokeStepResult result = session.step(batch.get(), step, job.lr);
      EXPECT_EQ(result.loss_sum / result.loss_weight, plain.loss[step - 1]);
    }
  });
}

TEST(Step, ACancelledStepSaysSoAndTheNextOneWorks) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    const Job job;
    static int cancelled = 0;
    YokeHost host = rank.host;
    host.check_cancel = [](void*) -> int32_t { return cancelled; };
    Session session(job, host, model.model());
    const TinyBatch batch(job, 0, 0);
    cancelled = 1;
    EXPECT_EQ(code_of([&] { session.step(batch.get(), 1, 1e-3); }), YOKE_CANCELLED);
    cancelled = 0;
    EXPECT_EQ(code_of([&] { session.step(batch.get(), 1, 1e-3); }), YOKE_OK);
  });
}

// The step of one rank fails while the others gather. All must end with an error, and none may
// hang.
TEST(Step, ARankThatFailsEndsTheStepOfAll) {
  Job job;
  job.shards = 2;
  EXPECT_THROW(on_ranks(yoke::Mesh({1, 1, 2, 1, 1}),
                        [&](const Rank& rank) {
                          TorchModelHost model(
                              job.model.blocks(), YOKE_F64, TinyModel::kSeed, true);
                          Session session(job, rank.host, model.model());
                          TinyBatch batch(job, 0, rank.host.rank);
                          if (rank.host.rank == 1) batch.micros()[0].tokens.fill_(99);
                          session.step(batch.get(), 1, 1e-3);
                        }),
               Error);
}

TEST(Step, ABatchWithoutMicroBatchesIsRefused) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Session session(Job{}, rank.host, model.model());
    YokeBatch empty{};
    empty.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
    EXPECT_EQ(code_of([&] { session.step(empty, 1, 1e-3); }), YOKE_INVALID_ARGUMENT);
  });
}

TEST(WrapModel, WithoutTheLibTorchModelItNamesWhatItNeeds) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    model.neutral_only();
    std::string text;
    EXPECT_EQ(code_of([&] { Session(Job{}, rank.host, model.model()); }, &text),
              YOKE_FAILED_PRECONDITION);
    EXPECT_THAT(text, ::testing::HasSubstr(kTorchTag));
  });
}

TEST(WrapModel, TheFirstRankLogsWhatWasMadeOfTheModelAndAllTellItsCosts) {
  static std::vector<std::string> lines;
  // At the peak the trainable unit, its gradients and the frozen unit are whole.
  const Elements elements(2);
  const int64_t peak = 8 * (2 * elements.trainable + elements.frozen);
  const Job job = one_unit(1, 2);
  on_ranks(yoke::Mesh({1, 1, 2, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(job.model.blocks(), YOKE_F64, TinyModel::kSeed, true);
    YokeHost host = rank.host;
    host.log = [](void*, int32_t, YokeString text) { lines.emplace_back(view(text)); };
    const Session session(job, host, model.model());
    EXPECT_EQ(session.wrapped.unsharded_bytes, peak);
    EXPECT_EQ(session.wrapped.activation_bytes, -1) << "these blocks do not report theirs";
    EXPECT_GT(session.wrapped.axis_bytes[YOKE_DP_SHARD], 0);
  });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "ptd: FSDP over 2 ranks, 5 blocks in 2 units");
}

TEST(WrapModel, ParametersAreUnboundWhenTheModelIsDestroyed) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    const at::Tensor leaf = torch_model(model.model())->params->front();
    {
      Session session(Job{}, rank.host, model.model());
      EXPECT_NE(leaf.storage().data(), nullptr);
    }
    EXPECT_EQ(leaf.storage().data(), nullptr);
  });
}

TEST(WrapModel, ShardedParametersHaveNoMemoryBetweenSteps) {
  Job job;
  job.shards = 2;
  on_ranks(yoke::Mesh({1, 1, 2, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(job.model.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Session session(job, rank.host, model.model());
    const TinyBatch batch(job, 0, rank.host.rank);
    session.step(batch.get(), 1, 1e-3);
    for (const at::Tensor& leaf : *torch_model(model.model())->params) {
      EXPECT_EQ(leaf.storage().data(), nullptr);
      EXPECT_FALSE(leaf.grad().defined());
    }
  });
}

TEST(Init, MoreThanOneRankNeedsCollectives) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Job job;
    job.shards = 2;
    YokeHost host = rank.host;
    host.get_service = [](void*, const char*, uint64_t) -> const YokeHeader* { return nullptr; };
    std::string text;
    EXPECT_EQ(code_of([&] { Session(job, host, model.model()); }, &text), YOKE_FAILED_PRECONDITION);
    EXPECT_THAT(text, ::testing::HasSubstr("yoke.collectives/1"));
  });
}

}  // namespace
}  // namespace yoke::ptd::testing
