// Compares diloco, with several inner backends, with a loop over two workers in plain tensor
// operations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using Args = std::vector<std::string>;

constexpr int kWorkers = 2;

struct Recipe {
  int local_steps = 3;
  double lr = 0.7, momentum = 0.9;
  Args args() const {
    return {"parallel_backend=diloco",
            "diloco.local_steps=" + std::to_string(local_steps),
            "diloco.lr=" + std::to_string(lr),
            "diloco.momentum=" + std::to_string(momentum)};
  }
};

PlainRun problem() {
  PlainRun run;
  run.steps = 9;
  run.fp64 = true;
  run.optimizer = "sgd";
  run.momentum = 0;
  run.weight_decay = 0;
  run.clip = 0;
  run.lr = [](int64_t) { return 0.5; };
  return run;
}

// Returns tokens and targets of the windows `first` to first + count - 1.
std::pair<at::Tensor, at::Tensor> windows(const PlainRun& run,
                                          const std::vector<uint8_t>& text,
                                          int64_t first,
                                          int64_t count) {
  const at::Tensor tokens = at::empty({count, run.seq_len}, at::kLong);
  const at::Tensor targets = at::empty_like(tokens);
  for (int64_t w = 0; w < count; ++w) {
    for (int64_t k = 0; k < run.seq_len; ++k) {
      const size_t at = static_cast<size_t>((first + w) * run.seq_len + k);
      tokens[w][k] = text[at];
      targets[w][k] = text[at + 1];
    }
  }
  return {tokens, targets};
}

// Runs DiLoCo with plain SGD as inner optimizer, each worker on its half of the batch. Returns the
// loss of each step.
std::vector<double> oracle(const PlainRun& run,
                           const std::vector<uint8_t>& text,
                           const Recipe& recipe) {
  std::vector<PlainParams> workers{plain_params(run), plain_params(run)};
  std::map<std::string, at::Tensor> anchor, velocity;
  for (const auto& [name, p] : workers[0]) {
    anchor[name] = p.detach().clone();
    velocity[name] = at::zeros_like(anchor[name]);
  }
  std::vector<double> losses;
  const int64_t half = run.global_batch / kWorkers;
  for (int64_t t = 1; t <= run.steps; ++t) {
    double sum = 0;
    for (int w = 0; w < kWorkers; ++w) {
      const auto [tokens, targets] =
          windows(run, text, (t - 1) * run.global_batch + w * half, half);
      const at::Tensor loss = plain_loss(run, workers[w], tokens, targets);
      (loss / (half * run.seq_len)).backward();
      sum += loss.item<double>();
      const at::NoGradGuard no_graph;
      for (auto& [name, p] : workers[w]) {
        p.sub_(p.grad(), run.lr(t));
        p.mutable_grad().reset();
      }
    }
    losses.push_back(sum / (run.global_batch * run.seq_len));
    if (t % recipe.local_steps != 0) continue;
    const at::NoGradGuard no_graph;
    for (auto& [name, a] : anchor) {
      const at::Tensor moved = a - (workers[0].at(name) + workers[1].at(name)) / kWorkers;
      at::Tensor& v = velocity[name];
      v.mul_(recipe.momentum).add_(moved);
      a.sub_(moved + recipe.momentum * v, recipe.lr);
      for (PlainParams& worker : workers) worker.at(name).copy_(a);
    }
  }
  return losses;
}

void expect_close(const std::vector<double>& losses, const std::vector<double>& expected) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t t = 0; t < losses.size(); ++t)
    EXPECT_NEAR(losses[t] / expected[t], 1, 1e-12) << "step " << t + 1;
}

std::vector<double> losses_of(ParityProgram& program, const Recipe& recipe, const Args& more) {
  Args args = recipe.args();
  args.insert(args.end(), more.begin(), more.end());
  const ProgramRun run = program.train(args);
  EXPECT_EQ(run.exit_code, 0) << run.output;
  return run.losses();
}

TEST(Diloco, EqualsAPlainLoopOverTwoWorkersOverEveryInnerBackend) {
  const PlainRun run = problem();
  const std::vector<uint8_t> text = parity_text(1 << 15);
  ParityProgram program(run, text);
  const Recipe recipe;
  const std::vector<double> expected = oracle(run, text, recipe);
  EXPECT_LT(expected.back(), 0.95 * expected.front());
  expect_close(losses_of(program, recipe, {"--virtual", "2"}), expected);
  if (backend_built("ptd")) {
    expect_close(losses_of(program, recipe, {"--virtual", "4", "diloco.inner=ptd", "dp_degree=2"}),
                 expected);
  }
}

TEST(Diloco, OfOneStepWithRateOneAndNoMomentumIsPlainAveraging) {
  const PlainRun run = problem();
  ParityProgram program(run, parity_text(1 << 15));
  const ProgramRun together = program.train({"parallel_backend=replicas", "--virtual", "2"});
  ASSERT_EQ(together.exit_code, 0) << together.output;
  const Recipe averaging{1, 1, 0};
  expect_close(losses_of(program, averaging, {"--virtual", "2"}), together.losses());
}

// deepspeed_stub has no SGD. With AdamW each worker keeps its own optimizer state, which the plain
// loop does not model, so the inner backends are compared with each other.
TEST(Diloco, WithAdamWDoesNotDependOnTheInnerBackend) {
  PlainRun run = problem();
  run.optimizer = "adamw";
  run.clip = 1;
  run.lr = [](int64_t) { return 3e-3; };
  ParityProgram program(run, parity_text(1 << 15));
  const Recipe recipe;
  const std::vector<double> expected = losses_of(program, recipe, {"--virtual", "2"});
  for (const Args& inner : {Args{"diloco.inner=ptd"},
                            Args{"diloco.inner=deepspeed_stub", "deepspeed_stub.zero_stage=1"}}) {
    if (!backend_built(inner[0].substr(inner[0].find('=') + 1))) continue;
    Args args{"--nproc", "4", "dp_degree=2"};
    args.insert(args.end(), inner.begin(), inner.end());
    expect_close(losses_of(program, recipe, args), expected);
  }
}

TEST(Diloco, RefusesWorkersThatCannotShareEqually) {
  ParityProgram program(problem(), parity_text(1 << 15));
  Args args = Recipe().args();
  args.insert(args.end(), {"--virtual", "4", "dp_degree=3"});
  const ProgramRun run = program.train(args);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_NE(run.output.find("dp_degree = 3; allowed: a divisor of 4"), std::string::npos)
      << run.output;
}

}  // namespace
}  // namespace yoke::testing
