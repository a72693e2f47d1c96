// Compares ptd in every layout with a plain loop over the same samples.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/emulated_cuda.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr double kLossBound = 1e-12, kNormBound = 1e-10;  // relative bounds in fp64

void expect_parity(const Job& job) {
  const Outcome plain = train_plain(job);
  const Outcome ours = train(job);
  ASSERT_EQ(ours.loss.size(), plain.loss.size());
  for (size_t s = 0; s < plain.loss.size(); ++s) {
    EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, kLossBound) << "step " << s + 1;
    EXPECT_NEAR(ours.grad_norm[s] / plain.grad_norm[s], 1, kNormBound) << "step " << s + 1;
  }
  EXPECT_NEAR(ours.eval_loss / plain.eval_loss, 1, kLossBound);
  EXPECT_LT(ours.loss.back(), ours.loss.front());
  for (const auto& [key, value] : plain.state) {
    ASSERT_TRUE(ours.state.count(key)) << key;
    EXPECT_TRUE(at::allclose(ours.state.at(key), value, 1e-9, 1e-11)) << key;
  }
  EXPECT_EQ(ours.counts.empty(), job.world() == 1);
}

struct Layout {
  const char* name;
  int replicas, shards;
};

class Parity : public ::testing::TestWithParam<Layout> {
 protected:
  Job job() const {
    Job job;
    job.replicas = GetParam().replicas;
    job.shards = GetParam().shards;
    return job;
  }
};

TEST_P(Parity, AdamW) {
  expect_parity(job());
}

TEST_P(Parity, VariantsOfAdamW) {
  for (const int32_t kind : {YOKE_ADAM, YOKE_ADAMW_UNCORRECTED, YOKE_ADAM_UNCORRECTED}) {
    SCOPED_TRACE(kind);
    Job j = job();
    j.optimizer = kind;
    // The decay in Adam's gradient is not clipped, so a small bound leaves little to learn.
    j.clip = 0.5;
    expect_parity(j);
  }
}

// With a stream the update reads the learning rate as an fp32 number, which represents this one
// exactly.
TEST_P(Parity, Lion) {
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    Job j = job();
    j.optimizer = YOKE_LION;
    j.stream = stream;
    j.lr = 0.00390625;
    expect_parity(j);
  }
}

TEST_P(Parity, SgdWithMomentum) {
  Job j = job();
  j.optimizer = YOKE_SGD;
  j.momentum = 0.9;
  j.lr = 0.05;
  expect_parity(j);
}

// The host has a stream, as on a device, so the step reads no result before its end. fp32
// represents this learning rate exactly.
TEST_P(Parity, OfStepsThatLookAtNothingBeforeTheirEnd) {
  Job j = job();
  j.stream = true;
  j.lr = 0.00390625;
  j.accumulation = 2;
  expect_parity(j);
}

// AdamW is the kernel of a device, emulated. In bf16 it also writes the parameters with which the
// model computes.
TEST_P(Parity, OfTheKernelsOfADevice) {
  const yoke::testing::EmulatedCuda cuda;
  for (const bool stream : {false, true}) {
    Job j = job();
    j.kernels = true;
    j.stream = stream;
    expect_parity(j);
  }
  Job j = job();
  j.model.dtype = at::kBFloat16;
  j.model.frozen_embedding = true;
  const Outcome plain = train(j);
  j.kernels = true;
  const Outcome ours = train(j);
  for (size_t s = 0; s < plain.loss.size(); ++s)
    EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, 2e-3) << "step " << s + 1;
  EXPECT_EQ(ours.wrapped.param_bytes, plain.wrapped.param_bytes);
}

TEST_P(Parity, WithoutClipping) {
  Job j = job();
  j.clip = 0;
  expect_parity(j);
}

TEST_P(Parity, AccumulationInBothModes) {
  for (const char* mode : {"sharded", "unsharded"}) {
    for (int accumulation : {2, 4}) {
      Job j = job();
      j.options["accumulate"] = mode;
      j.accumulation = accumulation;
      j.global_batch = 16;
      SCOPED_TRACE(std::string(mode) + " " + std::to_string(accumulation));
      expect_parity(j);
    }
  }
}

TEST_P(Parity, WithoutReshardingAfterForward) {
  Job j = job();
  j.options["reshard_after_forward"] = "false";
  j.accumulation = 2;
  expect_parity(j);
}

TEST_P(Parity, ActivationCheckpointing) {
  Job j = job();
  j.options["activation_checkpoint"] = "full";
  j.accumulation = 2;
  expect_parity(j);
}

TEST_P(Parity, UntiedHead) {
  Job j = job();
  j.model.tied = false;
  expect_parity(j);
}

TEST_P(Parity, FrozenEmbedding) {
  Job j = job();
  j.model.frozen_embedding = true;
  expect_parity(j);
}

TEST_P(Parity, EveryBlockAUnitAndAllInOneUnit) {
  for (const char* bytes : {"1", "1000000"}) {
    Job j = job();
    j.options["unit_bytes"] = bytes;
    SCOPED_TRACE(bytes);
    expect_parity(j);
  }
}

// The bounds are wide in fp32, because rounding differs with the layout. The test in fp64 is the
// strict one.
TEST_P(Parity, Fp32) {
  Job j = job();
  j.model.dtype = at::kFloat;
  const Outcome plain = train_plain(j), ours = train(j);
  for (size_t s = 0; s < plain.loss.size(); ++s) {
    EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, 2e-6) << "step " << s + 1;
    EXPECT_NEAR(ours.grad_norm[s] / plain.grad_norm[s], 1, 4e-4) << "step " << s + 1;
  }
}

// Compares bf16 with fp32: a wrong gradient, a lost micro-batch or a stale copy shows in the norm.
TEST_P(Parity, Bf16) {
  for (const char* mode : {"sharded", "unsharded"}) {
    for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(mode) + ", reduced in " + c10::toString(reduce));
      Job j = job();
      j.global_batch = 16;
      j.accumulation = 2;
      j.options["accumulate"] = mode;
      j.options["activation_checkpoint"] = "full";
      j.model.dtype = at::kFloat;
      const Outcome plain = train_plain(j);
      j.model.dtype = at::kBFloat16;
      j.reduce = reduce;
      const Outcome ours = train(j);
      for (size_t s = 0; s < plain.loss.size(); ++s) {
        EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, 0.01) << "step " << s + 1;
        EXPECT_NEAR(ours.grad_norm[s] / plain.grad_norm[s], 1, 0.05) << "step " << s + 1;
      }
      EXPECT_NEAR(ours.eval_loss / plain.eval_loss, 1, 0.01);
    }
  }
}

// The loss is scaled, and the norm and the parameters must not depend on it. With a stream the
// update reads the scale from a tensor.
TEST_P(Parity, Fp16) {
  for (const bool stream : {false, true}) {
    for (const int32_t optimizer : {YOKE_ADAMW, YOKE_SGD}) {
      for (const double clip : {0.0, 0.05}) {
        SCOPED_TRACE(::testing::Message()
                     << "stream " << stream << ", optimizer " << optimizer << ", clip " << clip);
        Job j = job();
        j.optimizer = optimizer;
        j.clip = clip;
        j.model.dtype = at::kFloat;
        const Outcome plain = train_plain(j);
        j.model.dtype = at::kHalf;
        j.stream = stream;
        j.loss_scale = 512;
        const Outcome ours = train(j);
        for (size_t s = 0; s < plain.loss.size(); ++s) {
          EXPECT_NEAR(ours.loss[s] / plain.loss[s], 1, 2e-3) << "step " << s + 1;
          EXPECT_NEAR(ours.grad_norm[s] / plain.grad_norm[s], 1, 0.02) << "step " << s + 1;
        }
      }
    }
  }
}

TEST_P(Parity, AStepThatOverflowsChangesNothing) {
  for (const bool stream : {false, true}) {
    SCOPED_TRACE(stream);
    Job j = job();
    j.model.dtype = at::kHalf;
    j.stream = stream;
    j.loss_scale = 512;
    const Outcome plain = train(j);
    j.overflows = true;
    const Outcome ours = train(j);
    EXPECT_EQ(ours.loss, plain.loss);
    for (const auto& [key, value] : plain.state)
      EXPECT_TRUE(at::equal(value, ours.state.at(key))) << key;
  }
}

TEST_P(Parity, TheSameLayoutTwiceIsBitIdentical) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Job j = job();
    j.model.dtype = dtype;
    j.accumulation = 2;
    const Outcome once = train(j), again = train(j);
    EXPECT_EQ(once.loss, again.loss);
    EXPECT_EQ(once.grad_norm, again.grad_norm);
    for (const auto& [key, value] : once.state)
      EXPECT_TRUE(at::equal(value, again.state.at(key))) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         Parity,
                         ::testing::Values(Layout{"Single", 1, 1},
                                           Layout{"Ddp2", 2, 1},
                                           Layout{"Fsdp2", 1, 2},
                                           Layout{"Fsdp4", 1, 4},
                                           Layout{"Hsdp2x2", 2, 2}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace yoke::ptd::testing
