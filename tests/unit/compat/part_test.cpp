#include "sdk/compat/part.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>
#include <utility>

#include "core/backend/services.hpp"
#include "core/config/run_config.hpp"
#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/host_reads.hpp"
#include "tests/support/token_batch.hpp"
#include "tests/support/virtual_ranks.hpp"

namespace yoke::compat {
namespace {

constexpr int64_t kTokens = 16;
constexpr int kMicros = 3;

BlockList blocks() {
  ModelConfig config;
  config.family = "llama";
  config.dim = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 4;
  config.ffn_dim = 48;
  config.vocab = 256;
  FamilyArgs args;
  args.param_dtype = YOKE_F64;
  args.seq_len = kTokens;
  return llama_family(config).make_blocks(args);
}

// Gives the parameters of a model memory with initial values, as an engine does.
std::vector<at::Tensor> bind_params(const YokeModel& model) {
  std::vector<at::Tensor> all;
  for (int64_t p = 0; p < static_cast<int64_t>(model.summary->num_params); ++p) {
    const YokeParameter& param = *model.summary->params[p];
    const at::Tensor initial =
        at::empty(at::IntArrayRef(param.shape, static_cast<size_t>(param.ndim)), at::kFloat);
    call([&](YokeError* err) {
      return model.init_param(
          model.ctx, p, 0, initial.numel(), initial.mutable_data_ptr<float>(), err);
    });
    const TensorView view(all.emplace_back(initial.to(at::kDouble)));
    call([&](YokeError* err) { return model.bind_param(model.ctx, p, view.get(), err); });
  }
  return all;
}

struct Layout {
  int pp, cp, tp;
};

struct Sums {
  double loss = 0, targets = 0;
  int reads = 0;  // losses and gradients that the host has read
};

// Trains a batch on a host with a stream, as on a device. Returns the sums over all ranks.
Sums train(const Layout& layout, const YokeBatch& batch) {
  Sums sums;
  std::mutex mutex;
  test::orderly_virtual_ranks(layout.pp * layout.cp * layout.tp, {}, [&](World& world) {
    world.set_mesh(Mesh({layout.pp, 1, 1, layout.cp, layout.tp}));
    const HostServices services(
        world, [](int32_t, const std::string&) {}, nullptr);
    YokeHost host = *services.host();
    host.stream = &host;
    YokePlan plan{};
    plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
    plan.world_size = host.world_size;
    plan.global_batch = kMicros;
    plan.micro_batch = 1;
    const int32_t degrees[] = {layout.pp, 1, 1, layout.cp, layout.tp};
    std::copy(std::begin(degrees), std::end(degrees), plan.degree);
    const TorchModelHost model(blocks(), YOKE_F64, 1, false);
    Division division{.pipeline = {}, .mesh = {true, true, {}, {}, false}};
    division.pipeline.stages =
        layout.pp == 1 ? mesh::cut_by_sizes({0}, {4}) : mesh::cut_by_sizes({0, 1}, {2, 2});
    const auto comms = mesh::ModelComms::make(plan, /*stages_return=*/false, host);
    const auto part = make_part(model.model(), division, comms, plan, host);
    const std::vector<at::Tensor> memory = bind_params(part->model());
    const auto pass = part->pass({[](uint64_t) {}, [](int64_t, const at::Tensor&) {}});
    const StepGuard guard(/*with_graph=*/false);  // as in the step of an engine
    const yoke::testing::HostReads reads;
    const RankTotals totals = pass->train(batch, Loss::kPerToken, 1);
    const int count = reads.count();
    const std::lock_guard lock(mutex);
    sums.reads += count;
    sums.loss += totals.loss.item<double>();
    sums.targets += totals.targets;
  });
  return sums;
}

TEST(Part, TheLossStaysOnTheDeviceUntilTheEndOfAStep) {
  const yoke::testing::TokenBatch batch({.micros = kMicros, .tokens = kTokens});
  const Sums whole = train({1, 1, 1}, batch.batch());
  const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
  for (const Layout& layout : {Layout{1, 1, 2}, {1, 2, 1}, {2, 1, 1}, {2, 2, 2}}) {
    SCOPED_TRACE(::testing::Message()
                 << "pp " << layout.pp << " cp " << layout.cp << " tp " << layout.tp);
    const Sums divided = train(layout, batch.batch());
    EXPECT_NEAR(divided.loss / whole.loss, 1, 1e-13);
    EXPECT_EQ(divided.targets, kMicros * kTokens);
    EXPECT_EQ(divided.reads, 0);
  }
}

}  // namespace
}  // namespace yoke::compat
