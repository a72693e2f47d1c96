// Measures how long the matrix products of a training step of a Llama take in fp32 on one thread,
// if nothing else is computed: a yardstick for one rank. All products of the forward come first,
// then in reverse order those for the gradients of each input and weight. Products inside attention
// are left out. Prints the median of the rounds in ms. The products are those of yoke-worker, or
// with --libtorch those of LibTorch as it is.
// Usage: products [--libtorch] DIM LAYERS HEADS KV_HEADS FFN VOCAB TOKENS
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
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
  void backward() {
    at::mm_out(dx, y, weight);
    at::mm_out(dweight, y.t(), x);
  }

  at::Tensor x, weight, y, dx, dweight;
};

}  // namespace

int main(int argc, char** argv) {
  const bool libtorch = argc > 1 && std::string_view(argv[1]) == "--libtorch";
  if (libtorch) ++argv, --argc;
  if (argc != 8) {
    std::fprintf(stderr,
                 "usage: products [--libtorch] DIM LAYERS HEADS KV_HEADS FFN VOCAB TOKENS\n");
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
  std::vector<double> seconds;
  for (int round = -3; round < kRounds; ++round) {
    const double begin = seconds_now();
    for (Linear& p : products) p.forward();
    for (size_t i = products.size(); i-- > 0;) products[i].backward();
    if (round >= 0) seconds.push_back(seconds_now() - begin);
  }
  std::printf("%.4f\n", 1e3 * spread(seconds).median);
}
