// Compares the accumulator with a plain one: gradients of several micro-batches, in bf16, are added
// in fp32, one after the other, at the places of their parameters in forward order.
#include "plugins/nanotron_compat/gradients.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/llama_summary.hpp"
#include "tests/support/mock_host.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using yoke::testing::Dims;
using yoke::testing::LlamaSummary;
using yoke::testing::MockHost;

TEST(Gradients, AreAddedInFp32AtTheirPlaces) {
  const LlamaSummary llama(Dims{.dim = 16, .layers = 1, .ffn_dim = 24, .vocab = 40, .tied = true});
  const YokeModelSummary& model = llama.get();
  const Layout layout = Layout::of(model, 100);
  const MockHost host;
  YokePlan plan{};
  std::fill_n(plan.degree, int{YOKE_NUM_AXES}, 1);
  const Comms comms(host.host, plan, false);
  Gradients gradients(
      model, layout, comms, Reduction::kAverage, at::TensorOptions().dtype(at::kFloat));
  at::manual_seed(1);
  for (int step = 0; step < 2; ++step) {  // the first gradient of a step replaces the last one
    at::Tensor plain = at::zeros({layout.size()}, at::kFloat);
    gradients.begin_step(3);
    for (int micro = 0; micro < 3; ++micro) {
      for (uint64_t b = model.num_blocks; b-- > 0;) {
        const YokeBlock& block = *model.blocks[b];
        for (uint64_t i = 0; i < block.num_params; ++i) {
          const int64_t p = block.params[i], count = compat::elements(model, p);
          const at::Tensor share = at::randn({count}).to(at::kBFloat16);
          gradients.add(p, share);
          plain.narrow(0, layout.offset(p), count).add_(share.to(at::kFloat));
        }
      }
    }
    gradients.finish();
    EXPECT_TRUE(at::equal(gradients.all(), plain)) << step;
  }
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
