// Saves and loads the state through the contract: a run of any world size can resume from a
// checkpoint of any other world size.
#include "plugins/ptd/checkpoint.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

Job job_of(int replicas, int shards, int64_t steps = 3) {
  Job job;
  job.replicas = replicas;
  job.shards = shards;
  job.global_batch = 12;
  job.steps = steps;
  job.model.dtype = at::kFloat;
  return job;
}

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [key, value] : a) EXPECT_TRUE(at::equal(value, b.at(key))) << key;
}

TEST(Checkpoint, HoldsEveryParameterWithItsMomentsAndTheStep) {
  const State state = train(job_of(1, 2)).state;
  EXPECT_EQ(state.at("param embed.weight").sizes(), (at::IntArrayRef{13, 7}));
  EXPECT_EQ(state.at("exp_avg head.gain").dim(), 0);
  EXPECT_TRUE(state.count("exp_avg_sq mlp1.up"));
  EXPECT_TRUE(state.count("param mlp1.scale"));
  EXPECT_FALSE(state.count("exp_avg mlp1.scale")) << "a frozen parameter has no moments";
  EXPECT_EQ(state.at("step optimizer").item<int64_t>(), 3);
}

TEST(Checkpoint, SgdHasAMomentumOnlyIfItIsNotZero) {
  Job job = job_of(1, 1, 1);
  job.optimizer = YOKE_SGD;
  EXPECT_FALSE(train(job).state.count("momentum mlp0.up"));
  job.momentum = 0.5;
  EXPECT_TRUE(train(job).state.count("momentum mlp0.up"));
}

TEST(Checkpoint, LoadsAtEveryOtherWorldSizeBitForBit) {
  const State saved = train(job_of(1, 2)).state;
  for (const auto& [replicas, shards] : {std::pair(1, 1), {1, 3}, {1, 4}, {2, 1}, {2, 2}}) {
    SCOPED_TRACE(std::to_string(replicas) + " x " + std::to_string(shards));
    expect_equal(train(job_of(replicas, shards, 0), &saved).state, saved);
  }
}

TEST(Checkpoint, ResumedTrainingIsTheUninterruptedOneBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [replicas, shards] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
      SCOPED_TRACE(std::to_string(replicas) + " x " + std::to_string(shards));
      const auto part = [&](int64_t first_step, int64_t steps, const State* start) {
        Job job = job_of(replicas, shards, steps);
        job.model.dtype = dtype;
        job.first_step = first_step;
        return train(job, start);
      };
      const Outcome whole = part(1, 6, nullptr);
      const State middle = part(1, 4, nullptr).state;
      const Outcome resumed = part(5, 2, &middle);
      expect_equal(resumed.state, whole.state);
      EXPECT_EQ(resumed.loss, std::vector<double>(whole.loss.begin() + 4, whole.loss.end()));
    }
  }
}

// The kernels of a device write the parameters in bf16 in the update only.
TEST(Checkpoint, ALoadBetweenStepsChangesWhatTheModelComputesWith) {
  const yoke::testing::EmulatedCuda cuda;
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    Job job = job_of(1, 1);
    job.model.dtype = at::kBFloat16;
    TorchModelHost model(job.model.blocks(), YOKE_BF16, TinyModel::kSeed, true);
    const YokeHost host = with_kernels(rank.host);
    Session session(job, host, model.model());
    const TinyBatch batch(job, 0, 0);
    const auto loss = [&] {
      return session.step(batch.get(), 2, 0, YOKE_STEP_FORWARD_ONLY).loss_sum;
    };
    std::map<std::string, at::Tensor> saved;
    const auto key = [](const YokePiece& piece) {
      return std::string(view(piece.kind)) + std::string(view(piece.name)) +
             std::to_string(piece.begin);
    };
    const double before = loss();
    session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
      saved[key(piece)] = borrow(*piece.view).clone();
    });
    session.step(batch.get(), 1, 0.1);
    EXPECT_NE(loss(), before);
    session.checkpoint(YOKE_CHECKPOINT_LOAD, [&](const YokePiece& piece) {
      borrow(*piece.view).copy_(saved.at(key(piece)));
    });
    EXPECT_EQ(loss(), before);
  });
}

TEST(Checkpoint, ABf16RunKeepsFp32MastersThatEveryLayoutAndAnFp32RunTake) {
  Job job = job_of(1, 2);
  job.model.dtype = job.reduce.emplace(at::kBFloat16);
  job.model.frozen_embedding = true;
  const State saved = train(job).state;
  for (const auto& [key, value] : saved) {
    EXPECT_EQ(value.scalar_type(), key == "step optimizer" ? at::kLong : at::kFloat) << key;
  }
  const at::Tensor up = saved.at("param mlp0.up");
  EXPECT_FALSE(at::equal(up, up.to(at::kBFloat16).to(at::kFloat))) << "only a bf16 copy was kept";
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [replicas, shards] : {std::pair(1, 1), {1, 3}, {2, 1}, {2, 2}}) {
      SCOPED_TRACE(std::to_string(replicas) + " x " + std::to_string(shards));
      Job other = job_of(replicas, shards, 0);
      other.model = job.model;
      other.model.dtype = dtype;
      expect_equal(train(other, &saved).state, saved);
    }
  }
}

TEST(Checkpoint, ReplicasAreNumberedAndDescribeShowsNoValues) {
  std::mutex mutex;
  std::map<int32_t, std::set<int64_t>> replicas_of_rank;
  on_ranks(yoke::Mesh({1, 2, 2, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Job job = job_of(2, 2);
    job.model.dtype = at::kDouble;
    Session session(job, rank.host, model.model());
    session.checkpoint(YOKE_CHECKPOINT_DESCRIBE, [&](const YokePiece& piece) {
      if (piece.view != nullptr) throw Error(YOKE_INTERNAL, "DESCRIBE shows values");
      const std::lock_guard lock(mutex);
      if (view(piece.kind) == "param") replicas_of_rank[rank.host.rank].insert(piece.replica);
    });
  });
  EXPECT_EQ(replicas_of_rank,
            (std::map<int32_t, std::set<int64_t>>{{0, {0}}, {1, {0}}, {2, {1}}, {3, {1}}}));
}

TEST(Checkpoint, TheVisitorsErrorEndsTheCall) {
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(TinyModel{}.blocks(), YOKE_F64, TinyModel::kSeed, true);
    Session session(Job{}, rank.host, model.model());
    int calls = 0;
    try {
      session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece&) {
        ++calls;
        throw Error(YOKE_DATA_LOSS, "the disk is full");
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
      EXPECT_STREQ(e.what(), "the disk is full");
    }
    EXPECT_EQ(calls, 1);
  });
}

}  // namespace
}  // namespace yoke::ptd::testing
