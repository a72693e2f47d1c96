// Tests that every backend of flat buffers must pass. They train a model with awkward parameters
// (tied, frozen and scalar ones, one that the loss does not depend on) on ranks that are threads.
// The backend is the one that the test links.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::testing {

using ptd::testing::Job;
using ptd::testing::Outcome;
using Options = std::map<std::string, std::string>;

// Returns a job; all given options count as set by the user.
inline Job job(int replicas, int shards, int accumulation, Options options) {
  Job job;
  job.replicas = replicas;
  job.shards = shards;
  job.accumulation = accumulation;
  job.global_batch = 24;
  job.steps = 10;
  for (const auto& [key, value] : options) job.given.push_back(key);
  job.options = std::move(options);
  return job;
}

// The bounds allow only for rounding: sums are made in another order.
inline void expect_plain(const Job& job) {
  const Outcome got = train(job), plain = train_plain(job);
  const std::string what = std::to_string(job.replicas) + " x " + std::to_string(job.shards) +
                           " ranks, accumulation " + std::to_string(job.accumulation);
  for (int64_t s = 0; s < job.steps; ++s) {
    EXPECT_NEAR(got.loss[s] / plain.loss[s], 1, 1e-12) << what << ", step " << s + 1;
    EXPECT_NEAR(got.grad_norm[s] / plain.grad_norm[s], 1, 1e-10) << what << ", step " << s + 1;
  }
  EXPECT_NEAR(got.eval_loss / plain.eval_loss, 1, 1e-12) << what;
  for (const auto& [key, value] : plain.state)
    EXPECT_TRUE(at::allclose(got.state.at(key), value, 1e-10, 1e-12)) << key << ", " << what;
}

inline void expect_plain_with_other_models_and_optimizers(const Job& job) {
  Job untied = job;
  untied.model.tied = false;
  expect_plain(untied);
  Job frozen = job;
  frozen.model.frozen_embedding = true;
  expect_plain(frozen);
  Job sgd = job;
  sgd.optimizer = YOKE_SGD;
  sgd.momentum = 0.9;
  expect_plain(sgd);
}

// Activations and parameters of the model have a mantissa of 8 bits, so losses agree to about 1e-2.
// Without the fp32 copies, or if they did not reach the model, the loss would not fall as it does.
inline void expect_bf16_learns_like_plain(Job half) {
  half.model.dtype = at::kBFloat16;
  half.lr = 3e-2;
  half.steps = 20;
  Job wide = half;
  wide.model.dtype = at::kDouble;
  const Outcome plain = train_plain(wide);
  ASSERT_LT(plain.loss.back(), 0.9 * plain.loss.front());
  for (const at::ScalarType reduce : {at::kFloat, at::kBFloat16}) {
    half.reduce = reduce;
    const Outcome got = train(half);
    for (int64_t s = 0; s < half.steps; ++s) EXPECT_NEAR(got.loss[s] / plain.loss[s], 1, 2e-2) << s;
    EXPECT_EQ(got.state.at("param embed.weight").scalar_type(), at::kFloat);
  }
}

// Returns the gradients of the first step of a job on the mean of means: without clipping they are
// the momentum. In an untied model each block reports gradients of its own parameters.
inline ptd::testing::State first_gradients(Job job) {
  job.model.tied = false;
  job.options["loss"] = "mean_of_means";
  job.optimizer = YOKE_SGD;
  job.momentum = 0.9;
  job.clip = job.lr = 0;
  job.steps = 1;
  ptd::testing::State gradients;
  for (const auto& [key, value] : train(job).state) {
    if (key.starts_with("momentum ")) gradients[key] = value;
  }
  EXPECT_EQ(gradients.size(), 13u);
  return gradients;
}

// Returns the gradients of one of n equal parts of the global batch, on a single rank.
inline ptd::testing::State gradients_of_part(Job job, int part, int n) {
  job.replicas = job.shards = job.accumulation = 1;
  job.global_batch /= n;
  job.first_step = part + 1;
  return first_gradients(job);
}

// A mean of four means scales the gradients of each by a power of two, which is exact.
inline void expect_adds_micro_batches_in(at::ScalarType sums, Job job) {
  job.model.dtype = at::kBFloat16;
  job.reduce = sums;
  job.accumulation = 4;
  ptd::testing::State plain;
  for (int micro = 0; micro < 4; ++micro) {
    for (const auto& [key, gradient] : gradients_of_part(job, micro, 4)) {
      const at::Tensor share = (gradient / 4).to(sums);
      plain[key] = micro > 0 ? plain[key] + share : share;
    }
  }
  for (const auto& [key, gradient] : first_gradients(job))
    EXPECT_TRUE(at::equal(gradient, plain.at(key).to(at::kFloat))) << key << " in " << sums;
}

// The bytes that rank 0 announces are those that it moves. outstanding: those of a gather that the
// step after the last one would have made.
inline void expect_announced_bytes(const Job& job,
                                   int axis,
                                   const char* name,
                                   int64_t outstanding) {
  const Outcome got = train(job);
  EXPECT_GT(got.wrapped.axis_bytes[axis], 0);
  EXPECT_EQ(got.counts.at(name).bytes, job.steps * got.wrapped.axis_bytes[axis] - outstanding);
}

inline void expect_resumes_bit_for_bit(Job whole) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    whole.model.dtype = dtype;
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
    rest.steps = 0;
    const Outcome untouched = train(rest, &begin.state);
    for (const auto& [key, value] : begin.state)
      EXPECT_TRUE(at::equal(untouched.state.at(key), value)) << key << " without a step";
  }
}

// ---- Single steps ----

// The number of calls of check_cancel, on this rank, that let a step continue before one of them
// cancels it; negative = none does. The engine checks before each forward and backward of a block.
inline int& checks_before_cancel() {
  thread_local int checks = -1;
  return checks;
}

// Runs body on every rank of a job, with a model that the backend has wrapped and a batch for it.
struct WrappedRank {
  ptd::testing::Session& session;
  const YokeBatch& batch;
};
inline void on_wrapped_ranks(const Job& job, const std::function<void(const WrappedRank&)>& body) {
  const yoke::Mesh mesh({1, job.replicas, job.shards, 1, 1});
  ptd::testing::on_ranks(mesh, [&](const ptd::testing::Rank& rank) {
    TorchModelHost model(
        job.model.blocks(), dtype_of(job.model.dtype), ptd::testing::TinyModel::kSeed, true);
    YokeHost host = rank.host;
    host.check_cancel = [](void*) -> int32_t { return checks_before_cancel()-- == 0 ? 1 : 0; };
    ptd::testing::Session session(job, host, model.model());
    const ptd::testing::TinyBatch batch(job, 0, rank.host.rank);
    body({session, batch.get()});
  });
}

// Returns how many times a rank runs a block forward or backward in a step.
inline int block_runs(const Job& job) {
  std::atomic<int> runs = 0;
  on_wrapped_ranks(job, [&](const WrappedRank& rank) {
    constexpr int kMany = 1'000'000;
    checks_before_cancel() = kMany;
    rank.session.step(rank.batch, 1, job.lr);
    runs = kMany - checks_before_cancel();
  });
  return runs;
}

// Expects an error of a step, after which the next step has the gradient of one without it. text:
// a part of the message.
inline void expect_forgotten(const Job& job,
                             int32_t code,
                             const char* text,
                             const std::function<void(const WrappedRank&)>& failing_step) {
  std::atomic<double> clean = 0;
  on_wrapped_ranks(job, [&](const WrappedRank& rank) {
    clean = rank.session.step(rank.batch, 1, job.lr).grad_norm;
  });
  on_wrapped_ranks(job, [&](const WrappedRank& rank) {
    try {
      failing_step(rank);
      ADD_FAILURE() << "the step has no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code);
      EXPECT_THAT(e.what(), ::testing::HasSubstr(text));
    }
    EXPECT_EQ(rank.session.step(rank.batch, 1, job.lr).grad_norm, clean);
  });
}

// A step is cancelled before each of its blocks, while reductions are in flight as well.
inline void expect_failed_steps_are_forgotten(const Job& job) {
  const int blocks = 2 * (job.model.layers + 2) * job.accumulation;  // forward and backward
  for (int block = 0; block < blocks; ++block) {
    expect_forgotten(job, YOKE_CANCELLED, "cancelled", [&](const WrappedRank& rank) {
      checks_before_cancel() = block;
      rank.session.step(rank.batch, 1, job.lr);
    });
  }
  expect_forgotten(
      job, YOKE_INVALID_ARGUMENT, "the batch has no micro-batch", [&](const WrappedRank& rank) {
        YokeBatch empty = rank.batch;
        empty.num_micros = 0;
        rank.session.step(empty, 1, job.lr);
      });
  expect_forgotten(job, YOKE_INVALID_ARGUMENT, "targets", [&](const WrappedRank& rank) {
    YokeBatch wrong = rank.batch;
    wrong.token_weight *= 2;
    rank.session.step(wrong, 1, job.lr);
  });
}

// Initial values are replaced by ones whose logits overflow.
inline void expect_an_infinite_step_changes_nothing(const Job& job) {
  on_wrapped_ranks(job, [&](const WrappedRank& rank) {
    rank.session.checkpoint(YOKE_CHECKPOINT_LOAD, [](const YokePiece& piece) {
      if (view(piece.kind) == "param") borrow(*piece.view).fill_(1e200);
    });
    std::vector<at::Tensor> before, after;
    const auto save = [&](std::vector<at::Tensor>& pieces) {
      rank.session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) {
        pieces.push_back(borrow(*piece.view).clone());
      });
    };
    save(before);
    const YokeStepResult result = rank.session.step(rank.batch, 1, job.lr);
    EXPECT_TRUE(std::isinf(result.grad_norm)) << result.grad_norm;
    save(after);
    ASSERT_EQ(after.size(), before.size());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << i;
  });
}

// ---- The loss ----

// The micro-batches of the job differ in their number of targets. hints: parts of the message.
inline void expect_uneven_is_refused(Job job, std::initializer_list<const char*> hints) {
  job.options["loss"] = "even";
  try {
    train(job);
    FAIL() << "the micro-batches differ in their number of targets";
  } catch (const Error& e) {
    for (const char* hint : hints) EXPECT_THAT(e.what(), ::testing::HasSubstr(hint));
  }
}

// Returns the gradient norm of the mean of the means of the micro-batches of the first step.
inline double plain_norm_of_means(const Job& job) {
  ptd::testing::TinyModel::Params params = job.model.plain_params();
  const int64_t micros = int64_t{job.data_ranks()} * job.accumulation;
  const int64_t size = job.global_batch / micros;
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int64_t m = 0; m < micros; ++m) {
    const ptd::testing::TinySamples s(m * size, size);
    loss = loss + job.model.plain_loss(params, s.tokens, s.targets) /
                      ptd::testing::count_targets(s.targets);
  }
  torch::autograd::backward({loss / micros});
  double squares = 0;
  for (const auto& [name, p] : params) {
    if (p.grad().defined()) squares += p.grad().square().sum().item<double>();
  }
  return std::sqrt(squares);
}

// The reported loss is that per token, so only the gradient differs from that of the plain loop.
inline void expect_mean_of_means(Job job) {
  job.options["loss"] = "mean_of_means";
  const Outcome got = train(job), plain = train_plain(job);
  EXPECT_NEAR(got.grad_norm[0] / plain_norm_of_means(job), 1, 1e-12);
  EXPECT_NEAR(got.loss[0] / plain.loss[0], 1, 1e-12);
  EXPECT_GT(std::abs(got.grad_norm[0] / plain.grad_norm[0] - 1), 1e-4);
}

}  // namespace yoke::testing
