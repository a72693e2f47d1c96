// Measures how long the matrix products of a training step of a Llama take in fp32 on one thread,
// if nothing else is computed: a yardstick for one rank. All products of the forward come first,
// then in reverse order those for the gradients of each input and weight. Products inside attention
// are left out. Prints the median of the rounds in ms, or with --each the rate of each product. The
// products are those of yoke-worker, or with --libtorch those of LibTorch as it is.
// Usage: products [--libtorch] [--each] DIM LAYERS HEADS KV_HEADS FFN VOCAB TOKENS
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/interleaved.hpp"
#include "core/kernels/cpu_products.hpp"

namespace {

using namespace yoke::bench;

constexpr int kRounds = 15;

// A weight [out, in] with input x and output y, and the gradients of x and of the weight. y also
// stands for its own gradient.
struct Linear {
  Linear(int64_t tokens, int64_t in, int64_t out)
      : x(at::randn({tokens, in})),
        weight(at::randn({out, in})),
        y(at::randn({tokens, out})),
        dx(at::empty_like(x)),
        dweight(at::empty_like(weight)) {}

  void forward() { at::mm_out(y, x, weight.t()); }
  void input_gradient() { at::mm_out(dx, y, weight); }
  void weight_gradient() { at::mm_out(dweight, y.t(), x); }
  double flops() const { return 2.0 * x.numel() * weight.size(0); }

  at::Tensor x, weight, y, dx, dweight;
};

// Prints the median time of all products of a step.
void print_step(std::vector<Linear>& products) {
  std::vector<double> seconds;
  for (int round = -3; round < kRounds; ++round) {
    const double begin = seconds_now();
    for (Linear& p : products) p.forward();
    for (size_t i = products.size(); i-- > 0;) {
      products[i].input_gradient();
      products[i].weight_gradient();
    }
    if (round >= 0) seconds.push_back(seconds_now() - begin);
  }
  std::printf("%.4f\n", 1e3 * spread(seconds).median);
}

// Prints the rates of the three products of each linear layer, each repeated by itself.
void print_each(std::vector<Linear>& products) {
  std::printf(
      "%7s %6s %6s   GFLOP/s: forward, input gradient, weight gradient\n", "tokens", "in", "out");
  std::set<std::pair<int64_t, int64_t>> seen;
  for (Linear& p : products) {
    if (!seen.emplace(p.weight.size(0), p.weight.size(1)).second) continue;
    const auto rate = [&](auto&& product) {
      const int64_t calls = 1 + static_cast<int64_t>(2e8 / p.flops());
      std::vector<double> seconds;
      for (int round = 0; round < kRounds; ++round) seconds.push_back(time_calls(calls, product));
      return 1e-9 * p.flops() / spread(seconds).median;
    };
    std::printf("%7ld %6ld %6ld   %.0f, %.0f, %.0f\n",
                p.x.size(0),
                p.x.size(1),
                p.weight.size(0),
                rate([&] { p.forward(); }),
                rate([&] { p.input_gradient(); }),
                rate([&] { p.weight_gradient(); }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool libtorch = false, each = false;
  for (; argc > 1 && argv[1][0] == '-'; ++argv, --argc) {
    const std::string_view flag = argv[1];
    if (flag == "--libtorch") {
      libtorch = true;
    } else if (flag == "--each") {
      each = true;
    } else {
      break;  // and so refused below
    }
  }
  if (argc != 8) {
    std::fprintf(
        stderr,
        "usage: products [--libtorch] [--each] DIM LAYERS HEADS KV_HEADS FFN VOCAB TOKENS\n");
    return 2;
  }
  if (!libtorch) yoke::ops::use_fast_cpu_products();
  std::array<int64_t, 7> given{};
  for (size_t i = 0; i < given.size(); ++i) given[i] = std::atoll(argv[i + 1]);
  const auto [dim, layers, heads, kv_heads, ffn, vocab, tokens] = given;
  const int64_t kv_dim = dim / heads * kv_heads;
  at::set_num_threads(1);
  std::vector<Linear> products;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const int64_t out : {dim, kv_dim, kv_dim, dim, ffn, ffn})
      products.emplace_back(tokens, dim, out);
    products.emplace_back(tokens, ffn, dim);
  }
  products.emplace_back(tokens, dim, vocab);
  each ? print_each(products) : print_step(products);
}
