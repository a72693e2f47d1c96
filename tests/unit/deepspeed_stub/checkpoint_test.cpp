// A saved state does not depend on the ZeRO stage and world size that wrote it, and can be loaded
// bit for bit at any other.
#include <gtest/gtest.h>

#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

constexpr int kStop = 5;

Job until_the_stop(int stage, int ranks) {
  Job job = Job{}.at_stage(stage).on(ranks);
  job.last_step = kStop;
  return job;
}

Job after_the_stop(Job job, const State& state) {
  job.first_step = kStop + 1;
  job.last_step = MockRun::kSteps;
  job.start = &state;
  return job;
}

// Loads a state and saves it again without a training step.
State reloaded(Job job, const State& state) {
  job.start = &state;
  job.last_step = 0;
  return train(job).state;
}

TEST(ZeroCheckpoint, LoadsAtAnyStageAndWorldSizeBitForBit) {
  for (const int from : {0, 1, 2, 3}) {
    const State state = train(until_the_stop(from, 4)).state;
    for (const int to : {0, 1, 2, 3}) {
      for (const int ranks : {1, 2, 8}) {
        EXPECT_EQ(reloaded(Job{}.at_stage(to).on(ranks), state), state)
            << from << " to " << to << " on " << ranks;
      }
    }
  }
}

TEST(ZeroCheckpoint, ResumeIsBitEqualToAnUninterruptedRun) {
  for (const int32_t dtype : {YOKE_F64, YOKE_F32, YOKE_BF16}) {
    for (const int stage : {0, 1, 2, 3}) {
      Job job = Job{}.at_stage(stage).on(2), first = until_the_stop(stage, 2);
      job.run.dtype = first.run.dtype = dtype;
      const Outcome whole = train(job);
      const State state = train(first).state;
      const Outcome rest = train(after_the_stop(job, state));
      EXPECT_EQ(rest.state, whole.state) << stage;
      EXPECT_TRUE(std::equal(
          rest.trace.loss.begin(), rest.trace.loss.end(), whole.trace.loss.begin() + kStop));
    }
  }
}

TEST(ZeroCheckpoint, ContinuesAtAnotherStageLikeThePlainLoop) {
  MockTrace oracle = plain_mock_loop(MockRun{.name = "adamw"});
  const State state = train(until_the_stop(3, 4)).state;
  const MockTrace rest = train(after_the_stop(Job{}.at_stage(1).on(2), state)).trace;
  oracle.loss.erase(oracle.loss.begin(), oracle.loss.begin() + kStop);
  oracle.norm.erase(oracle.norm.begin(), oracle.norm.begin() + kStop);
  expect_close(rest, oracle, 1e-12);
}

TEST(ZeroCheckpoint, LoadsInAnotherBackendAndBack) {
  Job other;
  other.backend = &yoke::testing::load_backend(YOKE_SERIAL);
  const State state = train(until_the_stop(3, 4)).state;
  EXPECT_EQ(reloaded(other, state), state);
  other.last_step = kStop;
  const State theirs = train(other).state;
  for (const int stage : {0, 1, 2, 3})
    EXPECT_EQ(reloaded(Job{}.at_stage(stage).on(2), theirs), theirs) << stage;
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
