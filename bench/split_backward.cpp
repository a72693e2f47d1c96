// Measures how much longer a backward takes in two parts: the products that lead to gradients of
// weights are left in a queue and computed after all others, as in a pipeline without bubbles.
// The blocks are those of the Llama `tiny`, on one thread, with 8 micro-batches of one sequence of
// 64 tokens.
//
//   build/release/bench/split_backward [ROUNDS]     default 40
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "bench/interleaved.hpp"
#include "core/kernels/ops.hpp"
#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "sdk/mesh/executor/block_runner.hpp"

namespace yoke::mesh {
namespace {

using bench::Samples;
using bench::time_calls;

constexpr int kMicros = 8, kSequences = 1, kTokens = 64;

class Model {
 public:
  Model() : host_(blocks(), YOKE_F32, 1, false) {
    const TorchModel& torch = *torch_model(host_.model());
    for (const TorchBlock& block : *torch.blocks) blocks_.push_back(&block);
    for (const at::Tensor& p : *torch.params) {
      const at::NoGradGuard no_grad;
      p.set_data(at::randn(p.sizes(), p.options()).mul_(0.02));
      sums_.push_back(at::zeros_like(p));
    }
    for (int i = 0; i < kMicros; ++i) {
      const at::Tensor tokens = at::randint(256, {kSequences, kTokens}, at::kLong);
      const at::Tensor positions = at::arange(kTokens).expand({kSequences, kTokens}).contiguous();
      inputs_.push_back({{"tokens", tokens}, {"targets", tokens}, {"positions", positions}});
    }
  }

  // Runs a step without communication and update.
  void step(bool split) {
    const at::AutoGradMode no_grad(false);  // each block records a graph of its own
    const int last = static_cast<int>(blocks_.size()) - 1;
    BlockRunner runner(blocks_, {{.end = last + 1}}, {0, 1}, ops::defer_weights, /*mesh=*/nullptr);
    runner.begin_step(inputs_, std::vector<at::Tensor>(inputs_.size(), at::ones({}, at::kDouble)));
    const ActionKind backward = split ? ActionKind::kBackwardInput : ActionKind::kBackward;
    for (int micro = 0; micro < kMicros; ++micro) {
      for (int b = 0; b <= last; ++b)
        runner.forward(
            {.kind = ActionKind::kForward, .block = b, .micro = micro, .save = Save::kAll});
      for (int b = last; b >= 0; --b) {
        runner.backward({.kind = backward, .block = b, .micro = micro});
        collect(b);
      }
      if (!split) continue;
      for (int b = last; b >= 0; --b) {
        runner.backward_weight({.kind = ActionKind::kBackwardWeight, .block = b, .micro = micro});
        collect(b);
      }
    }
    runner.end_step();
  }

 private:
  // Adds the gradients of a block to their sums, as the executor does.
  void collect(int block) {
    const YokeBlock& listed = *host_.summary().blocks[block];
    for (uint64_t i = 0; i < listed.num_params; ++i) {
      at::Tensor& grad = (*torch_model(host_.model())->params)[listed.params[i]].mutable_grad();
      if (!grad.defined()) continue;
      sums_[listed.params[i]].add_(grad);
      grad.reset();
    }
  }

  static BlockList blocks() {
    ModelConfig config;
    config.preset = "tiny";
    return llama_family(config).make_blocks({.param_dtype = YOKE_F32});
  }

  TorchModelHost host_;
  std::vector<const TorchBlock*> blocks_;
  std::vector<TorchInputs> inputs_;
  std::vector<at::Tensor> sums_;
};

int run(int rounds) {
  at::set_num_threads(1);
  Model model;
  Samples whole{"whole", {}}, split{"split", {}};
  for (int round = -2; round < rounds; ++round) {
    const double a = time_calls(1, [&] { model.step(false); });
    const double b = time_calls(1, [&] { model.step(true); });
    if (round < 0) continue;  // warm-up
    whole.seconds.push_back(a);
    split.seconds.push_back(b);
  }
  bench::print("step with whole backwards", bench::spread(whole.seconds), 1e3, "ms");
  bench::print("step with backwards in two parts", bench::spread(split.seconds), 1e3, "ms");
  bench::print("ratio", bench::ratio(split, whole), 1, "");
  return 0;
}

}  // namespace
}  // namespace yoke::mesh

int main(int argc, char** argv) {
  return yoke::mesh::run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 40);
}
