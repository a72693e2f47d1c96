// Compares pipelines with one rank that runs the same micro-batches. Every sum of a step but the
// gradient norm is computed in the same order, so that without clipping all parameters must be
// equal bit for bit. With ptd.exact_sums everything must be.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "sdk/mesh/schedule/pipeline.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr double kLossBound = 1e-12, kNormBound = 1e-10;  // relative bounds in fp64

// Returns a job for the schedule with a model of six blocks.
Job job_with(const std::string& schedule, int pp, at::ScalarType dtype = at::kDouble) {
  Job job;
  job.model.layers = 6;
  job.model.tied = false;
  job.model.dtype = dtype;
  job.pp = pp;
  job.accumulation = 4;
  job.global_batch = 8;
  job.options["pp_schedule"] = schedule;
  return job;
}

void expect_equal_bits(const State& ours, const State& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (const auto& [key, value] : expected) {
    ASSERT_TRUE(ours.count(key)) << key;
    EXPECT_TRUE(at::equal(ours.at(key), value)) << key;
  }
}

void expect_equal_bits(Job job) {
  const Outcome ours = train(job);
  job.pp = 1;
  const Outcome expected = train(job);
  EXPECT_EQ(ours.loss, expected.loss);
  EXPECT_EQ(ours.eval_loss, expected.eval_loss);
  if (job.options.count("exact_sums") > 0) {
    EXPECT_EQ(ours.grad_norm, expected.grad_norm);
    EXPECT_GT(*std::min_element(ours.grad_norm.begin(), ours.grad_norm.end()), job.clip);
  }
  for (size_t s = 0; s < expected.grad_norm.size(); ++s)
    EXPECT_NEAR(ours.grad_norm[s] / expected.grad_norm[s], 1, 1e-6) << "step " << s + 1;
  expect_equal_bits(ours.state, expected.state);
}

void expect_parity_with_the_plain_loop(const Job& job) {
  const Outcome plain = train_plain(job), ours = train(job);
  for (size_t s = 0; s < plain.loss.size(); ++s) {
    EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, kLossBound) << "step " << s + 1;
    EXPECT_NEAR(ours.grad_norm[s] / plain.grad_norm[s], 1, kNormBound) << "step " << s + 1;
  }
  EXPECT_NEAR(ours.eval_loss / plain.eval_loss, 1, kLossBound);
  for (const auto& [key, value] : plain.state) {
    ASSERT_TRUE(ours.state.count(key)) << key;
    EXPECT_TRUE(at::allclose(ours.state.at(key), value, 1e-9, 1e-11)) << key;
  }
}

class EverySchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(EverySchedule, IsEqualToOneRankBitForBitWithoutClipping) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int pp : {2, 4}) {
      Job job = job_with(GetParam(), pp, dtype);
      job.clip = 0;
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " pp " + std::to_string(pp));
      expect_equal_bits(job);
    }
  }
}

TEST_P(EverySchedule, IsEqualToOneRankBitForBitWithExactSums) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int pp : {2, 4}) {
      for (const bool tied : {false, true}) {
        Job job = job_with(GetParam(), pp, dtype);
        job.model.tied = tied;
        job.options["exact_sums"] = "true";
        SCOPED_TRACE(std::string(c10::toString(dtype)) + " pp " + std::to_string(pp) +
                     (tied ? " tied" : ""));
        expect_equal_bits(job);
      }
    }
  }
}

// The sum over the replicas comes after the sum of both gradients of a tied parameter.
TEST_P(EverySchedule, IsEqualToReplicasBitForBitWithExactSums) {
  for (const bool tied : {false, true}) {
    Job job = job_with(GetParam(), 2, at::kFloat);
    job.model.tied = tied;
    job.replicas = 2;
    job.global_batch *= 2;
    job.stream = tied;
    job.options["exact_sums"] = "true";
    SCOPED_TRACE(tied ? "tied" : "untied");
    expect_equal_bits(job);
  }
}

TEST_P(EverySchedule, IsEqualToThePlainLoopWithClipping) {
  for (const int pp : {2, 3, 4}) {
    Job job = job_with(GetParam(), pp);
    if (pp == 3) job.global_batch = 12, job.accumulation = 6;
    SCOPED_TRACE("pp " + std::to_string(pp));
    expect_parity_with_the_plain_loop(job);
  }
}

// Embedding and head share a parameter. The pipeline adds its gradients in another order than one
// rank does, which adds those of the head and of the embedding in turn.
TEST_P(EverySchedule, ATiedParameterGetsTheGradientsOfBothRanks) {
  for (const int shards : {1, 2}) {
    Job job = job_with(GetParam(), 4);
    job.model.tied = true;
    job.shards = shards;
    job.global_batch *= shards;
    SCOPED_TRACE("shards " + std::to_string(shards));
    expect_parity_with_the_plain_loop(job);
  }
}

TEST_P(EverySchedule, WorksWithEverythingElse) {
  int cases = 0;
  for (const int pp : {2, 3}) {
    for (const auto& [replicas, shards] : {std::pair(2, 1), {1, 2}, {2, 2}}) {
      for (const char* recompute : {"none", "full", "stage"}) {
        Job job = job_with(GetParam(), pp);
        job.model.layers = pp == 2 ? 3 : 5;  // an odd number of blocks
        job.model.tied = ++cases % 2 == 0;
        job.model.frozen_embedding = cases % 3 == 0;
        job.replicas = replicas;
        job.shards = shards;
        job.accumulation = 6;
        job.global_batch = 12 * job.data_ranks();
        job.options["activation_checkpoint"] = recompute;
        if (cases % 4 == 1) {
          job.options["accumulate"] = "sharded";
          job.options["reshard_after_forward"] = "true";
          job.given = {"accumulate", "reshard_after_forward"};
        }
        if (cases % 4 == 2) job.options["pp_whole"] = "1";
        SCOPED_TRACE("pp " + std::to_string(pp) + " case " + std::to_string(cases));
        expect_parity_with_the_plain_loop(job);
      }
    }
  }
}

// A file may take micro-batches in any order, also if gradients are reduced over data ranks.
TEST(OrderFile, MayTakeMicroBatchesInAnyOrder) {
  const std::string path = ::testing::TempDir() + "ptd_pipeline_test_order.csv";
  std::ofstream(path) << "0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n1F0,1F1,1F2,1F3,1B3,1B2,1B1,1B0\n";
  for (const auto& [replicas, shards] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
    for (const char* accumulate : {"sharded", "unsharded"}) {
      Job job = job_with("1f1b", 2);
      job.replicas = replicas;
      job.shards = shards;
      job.global_batch *= job.data_ranks();
      job.options["pp_schedule_file"] = path;
      job.options["accumulate"] = accumulate;
      job.given = {"accumulate"};
      SCOPED_TRACE("replicas " + std::to_string(replicas) + " shards " + std::to_string(shards));
      expect_parity_with_the_plain_loop(job);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pipeline,
                         EverySchedule,
                         ::testing::Values("gpipe",
                                           "1f1b",
                                           "interleaved",
                                           "looped_bfs",
                                           "zb_h1",
                                           "zb_interleaved",
                                           "zb_v",
                                           "v_half",
                                           "v_min",
                                           "dual_pipe_v"));

}  // namespace
}  // namespace yoke::ptd::testing
