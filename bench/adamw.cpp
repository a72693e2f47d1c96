// Compares the AdamW kernel of deepspeed_stub with LibTorch's fused AdamW on the same arrays, with
// one thread, with and without writing a bf16 copy of the parameters. Also compares it with the
// bandwidth of an axpy loop. Usage: adamw [million parameters, default 100]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include "bench/interleaved.hpp"
#include "plugins/deepspeed_stub/kernels/kernels.hpp"

namespace {

using namespace yoke::bench;
using namespace yoke::deepspeed_stub;

constexpr int kRounds = 9;
constexpr double kBytes = 28;      // bytes per parameter: four arrays read, three written
constexpr double kAxpyBytes = 12;  // bytes per parameter: two arrays read, one written

struct State {
  explicit State(int64_t n)
      : param(at::randn({n})),
        exp_avg(at::zeros({n})),
        exp_avg_sq(at::zeros({n})),
        gradient(at::randn({n})),
        copy(at::zeros({n}, at::kBFloat16)),
        step(at::full({}, 5.0, at::kFloat)) {}

  UpdateArrays<float, float, BFloat16> arrays(bool with_copy) {
    return {param.data_ptr<float>(),
            exp_avg.data_ptr<float>(),
            exp_avg_sq.data_ptr<float>(),
            gradient.data_ptr<float>(),
            with_copy ? static_cast<BFloat16*>(copy.data_ptr()) : nullptr};
  }
  void torch_step() {
    at::_fused_adamw_({param},
                      {gradient},
                      {exp_avg},
                      {exp_avg_sq},
                      {},
                      {step},
                      1e-3,
                      0.9,
                      0.95,
                      0.1,
                      1e-8,
                      false,
                      false);
  }

  at::Tensor param, exp_avg, exp_avg_sq, gradient, copy, step;
};

void measure(int64_t n) {
  State s(n);
  YokeOptimizer config{};
  config.kind = YOKE_ADAMW;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.eps = 1e-8;
  config.weight_decay = 0.1;
  const YokeUpdate step = yoke_update_step(&config, 5, 1e-3, 1);
  const StepTotals totals{0, 0, 0, 1.0, 1};
  const Kernels& best = kernels();
  const double millions = static_cast<double>(n) / 1e6;
  std::printf("%.0f million parameters, kernels for %s\n", millions, best.name);
  Samples stream{"stream: x += y", {}}, ours{"ours", {}}, theirs{"LibTorch, fused", {}},
      ours_copy{"ours, writing a bf16 copy too", {}},
      theirs_copy{"LibTorch, fused, then a cast to bf16", {}};
  for (int round = 0; round <= kRounds; ++round) {
    const auto time = [&](Samples& samples, auto&& f) {
      const double seconds = time_calls(1, f);
      if (round > 0) samples.seconds.push_back(seconds);  // the first round touches the memory
    };
    time(stream, [&] {
      best.add_fp32(nullptr, one_row(n), s.gradient.data_ptr<float>(), s.param.data_ptr<float>());
    });
    time(ours, [&] { best.update_fp32(nullptr, n, step, s.arrays(false), &totals); });
    time(theirs, [&] { s.torch_step(); });
    time(ours_copy, [&] { best.update_fp32(nullptr, n, step, s.arrays(true), &totals); });
    time(theirs_copy, [&] {
      s.torch_step();
      s.copy.copy_(s.param);
    });
  }
  for (const Samples& samples : {stream, ours, theirs, ours_copy, theirs_copy})
    print(samples.name, spread(samples.seconds), 1e3, "ms");
  print("speed relative to LibTorch; target 0.95", ratio(theirs, ours), 1, "x");
  print("with the bf16 copy; target 1.2", ratio(theirs_copy, ours_copy), 1, "x");
  print("share of the stream bandwidth; target 0.85", ratio(stream, ours), kBytes / kAxpyBytes, "");
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  measure((argc > 1 ? std::atoll(argv[1]) : 100) * 1'000'000);
  return 0;
}
