// Compares the engine on the emulated device with the plain loop. The host cannot access the memory
// of that device, and work runs as late as possible.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"
#include "tests/unit/deepspeed_stub/emulated_cuda.hpp"
#include "tests/unit/deepspeed_stub/rig.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using namespace yoke::testing;

// The bounds are those of the CPU; see zero_test.cpp.
constexpr double kFp64 = 1e-12, kFp32 = 2e-6, kBf16 = 1e-2;

class ZeroOnDevice : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  Job job() const {
    return Job{}.at_stage(std::get<0>(GetParam())).on(std::get<1>(GetParam())).on_cuda();
  }
};

void expect_parity(const Job& job, double bound) {
  const Outcome outcome = train(job);
  expect_close(outcome.trace, plain_mock_loop(job.run), bound);
  EXPECT_EQ(outcome.waits, std::vector<int64_t>(MockRun::kSteps, 1));
}

TEST_P(ZeroOnDevice, EqualsThePlainLoopAndWaitsOnceAStep) {
  expect_parity(job(), kFp64);
}

TEST_P(ZeroOnDevice, InSmallBucketsWithAccumulation) {
  Job j = job();
  j.run.micro_batch = 1;
  j.options.merge(small_buckets());
  expect_parity(j, kFp64);
  j.options["overlap_comm"] = "false";
  j.options["reduce_scatter"] = "false";
  j.options["allgather_partitions"] = "false";
  expect_parity(j, kFp64);
}

TEST_P(ZeroOnDevice, InFp32AndBf16) {
  Job j = job();
  j.run.dtype = YOKE_F32;
  expect_parity(j, kFp32);
  j.run.dtype = YOKE_BF16;
  expect_parity(j, kBf16);
  j.run.micro_batch = 1;
  j.options.merge(small_buckets());
  expect_parity(j, kBf16);
}

TEST_P(ZeroOnDevice, StateLoadsOnTheCpuAndBack) {
  Job on_cuda = job(), on_cpu = job();
  on_cpu.cuda = false;
  on_cuda.last_step = 3;
  const State state = train(on_cuda).state;
  on_cuda.last_step = on_cpu.last_step = 0;
  on_cuda.start = on_cpu.start = &state;
  EXPECT_EQ(train(on_cpu).state, state);
  EXPECT_EQ(train(on_cuda).state, state);
}

// The update is issued before the host knows the norm, so the kernel itself must skip it.
TEST_P(ZeroOnDevice, ANormThatIsNotFiniteUpdatesNothing) {
  for (const bool cuda : {true, false}) {
    Job j = job();
    j.cuda = cuda;
    j.last_step = 2;
    State state = train(j).state;
    Tensor& gain = state.at("head.gain/param");
    const double huge = 1e300;
    std::memcpy(gain.bytes.data(), &huge, sizeof huge);
    j.start = &state;
    j.first_step = j.last_step = 3;
    const Outcome outcome = train(j);
    EXPECT_EQ(outcome.trace.norm.front(), std::numeric_limits<double>::infinity());
    EXPECT_EQ(outcome.state, state);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages,
                         ZeroOnDevice,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3),
                                            ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return "stage" + std::to_string(std::get<0>(info.param)) + "_ranks" +
                                  std::to_string(std::get<1>(info.param));
                         });

// With 8 ranks, slices start at addresses that are not multiples of 16 bytes.
TEST(ZeroOnDevice, StagesZeroOneAndTwoAreBitEqual) {
  Job job = Job{}.on(8).on_cuda();
  job.run.dtype = YOKE_F32;
  const Outcome replicas = train(job.at_stage(0));
  for (const int stage : {1, 2}) {
    const Outcome sliced = train(job.at_stage(stage));
    EXPECT_EQ(sliced.trace.loss, replicas.trace.loss) << stage;
    EXPECT_EQ(sliced.trace.norm, replicas.trace.norm) << stage;
    EXPECT_EQ(sliced.state, replicas.state) << stage;
  }
}

class FailureOnDevice : public ::testing::TestWithParam<int> {};

TEST_P(FailureOnDevice, LeavesNothingBehindAndChangesNothing) {
  MockHost host;
  MockModel model;
  MockPlan plan;
  plan.options = small_buckets();
  plan.options["zero_stage"] = std::to_string(GetParam());
  EmulatedCuda cuda;
  cuda.plug_into(host);
  const YokeModel on_device = cuda.on_device(model.model());
  Session session(plugin(), plan, host, on_device);
  const auto saved = [&] {
    const EmulatedCuda::Access access(cuda);
    return save_state(session);
  };
  const auto before = saved();
  const MockBatch batch({8, 4}, 1);
  for (const char* call : {"forward head", "backward head", "backward embed"}) {
    model.fail_at(call, 1);  // fails in the second micro-batch
    EXPECT_THROW(session.step(batch.batch(), 1, 0.05), Error) << call;
    EXPECT_EQ(saved(), before) << call;
  }
  MockBatch wrong({8, 4}, 1);
  wrong.claim_weight(1000);
  EXPECT_THROW(session.step(wrong.batch(), 1, 0.05), Error);
  EXPECT_EQ(saved(), before);
  session.step(batch.batch(), 1, 0.05);
  EXPECT_NE(saved(), before);
  EXPECT_EQ(model.log().live_saved, 0);
}

// Reductions in flight write to memory that the destructor frees, so it must wait for them.
TEST_P(FailureOnDevice, DestroyingAModelWaitsForItsReductions) {
  MockWorld world(2);
  world.run([&](int32_t rank) {
    MockHost host(&world, rank, 2);
    MockModel model;
    MockPlan plan;
    plan.plan.world_size = 2;
    plan.options = small_buckets();
    plan.options["zero_stage"] = std::to_string(GetParam());
    EmulatedCuda cuda;
    cuda.plug_into(host);
    const YokeModel on_device = cuda.on_device(model.model());
    Session session(plugin(), plan, host, on_device);
    const MockBatch batch({8, 4, rank, 2}, 1);
    model.fail_at("backward embed", 0);
    EXPECT_THROW(session.step(batch.batch(), 1, 0.05), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, FailureOnDevice, ::testing::Values(0, 1, 2, 3));

TEST(DeepspeedStub, DeclaresCudaWhereItWasBuiltWithIt) {
  const YokeDescription* d = nullptr;
  ASSERT_EQ(plugin().describe(&d, nullptr), YOKE_OK);
  EXPECT_EQ(d->devices, 1u << YOKE_DEVICE_CPU | 1u << YOKE_DEVICE_CUDA);
}

}  // namespace
}  // namespace yoke::deepspeed_stub::testing
