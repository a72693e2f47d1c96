// Trains a model with awkward parameters under DDP: tied, frozen and scalar ones, and one that the
// loss does not depend on.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::accelerate_compat::testing {
namespace {

using ptd::testing::Job;
using ptd::testing::Outcome;
using ::testing::HasSubstr;

Job job(int replicas, int accumulation, bool frozen_embedding = false) {
  Job job;
  job.model.frozen_embedding = frozen_embedding;
  job.replicas = replicas;
  job.accumulation = accumulation;
  job.global_batch = 12;
  job.steps = 10;
  job.options = {{"find_unused_parameters", "true"}};
  return job;
}

void expect_plain(const Job& job) {
  const Outcome got = train(job), plain = train_plain(job);
  const std::string what =
      std::to_string(job.replicas) + " replicas, accumulation " + std::to_string(job.accumulation);
  for (int64_t s = 0; s < job.steps; ++s) {
    EXPECT_NEAR(got.loss[s] / plain.loss[s], 1, 1e-12) << what << ", step " << s + 1;
    EXPECT_NEAR(got.grad_norm[s] / plain.grad_norm[s], 1, 1e-10) << what << ", step " << s + 1;
  }
  EXPECT_NEAR(got.eval_loss / plain.eval_loss, 1, 1e-12) << what;
  for (const auto& [key, value] : plain.state)
    EXPECT_TRUE(at::allclose(got.state.at(key), value, 1e-10, 1e-12)) << key << ", " << what;
}

TEST(Ddp, TrainsLikeThePlainLoop) {
  for (const int replicas : {1, 2, 3}) {
    for (const int accumulation : {1, 2}) expect_plain(job(replicas, accumulation));
  }
  expect_plain(job(2, 1, /*frozen_embedding=*/true));
  Job sgd = job(2, 2);
  sgd.optimizer = YOKE_SGD;
  sgd.momentum = 0.9;
  expect_plain(sgd);
  for (const int32_t kind : {YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED}) {
    Job variant = job(2, 2);
    variant.optimizer = kind;
    expect_plain(variant);
  }
  Job synced = job(2, 2);
  synced.options["sync_each_batch"] = "true";
  synced.options["gradient_as_bucket_view"] = "false";
  expect_plain(synced);
}

TEST(Ddp, AParameterWithoutGradientIsAnErrorUnlessUnusedOnesAreAllowed) {
  Job careless = job(2, 1);
  careless.options = {};
  try {
    train(careless);
    FAIL() << "the replicas were never reduced";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("accelerate_compat.find_unused_parameters = true"));
  }
}

TEST(Ddp, ResumesBitForBitFromALoadedState) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Job whole = job(3, 2);
    whole.model.dtype = dtype;
    whole.reduce = dtype;
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

}  // namespace
}  // namespace yoke::accelerate_compat::testing
