// Gathers in fp8, compared with what a product makes of the whole parameter.
#include "plugins/ptd/executor/fp8_shard.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/kernels/fp8.hpp"
#include "core/model/torch_model.hpp"
#include "plugins/ptd/comms.hpp"
#include "tests/unit/ptd/rig.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

using ops::fp8::Rounding;
using ops::fp8::Scaling;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Parameters of a unit. With four shards some parameters have no element in some shards.
const ModelSpec kModel{{{1000}, {3}, {700}, {64}, {129}, {40}}, {{0, 1, 2, 3, 4, 5}}};
const Unit kUnit{{0, 1, 2, 3, 4, 5}, true, true};

// Returns master copies of the whole unit with what is awkward to round.
at::Tensor whole_masters(const FlatLayout& layout, at::ScalarType master, int step) {
  at::Tensor all = at::zeros({layout.numel()}, master);
  const auto param = [&](int p) {
    const FlatLayout::Slot& slot = layout.slots()[p];
    return all.narrow(0, slot.offset, slot.numel);
  };
  at::Generator dice = at::make_generator<at::CPUGeneratorImpl>(17 + step);
  param(0).normal_(0, 0.02, dice);
  param(1).copy_(at::tensor({225.0, -1e-9, 0.7}, master));  // 225 is rounded to 224
  param(2).normal_(0, 1, dice);
  param(2)[650].fill_(1e4 * step);  // an outlier, which only one shard has
  param(4).normal_(0, 1e-30, dice);
  param(5).normal_(0, 1, dice);
  if (step == 3) param(4)[128].fill_(kNaN);
  if (step == 3) param(5)[1].fill_(kInfinity);
  return all;
}

// Returns the functions of a host.
const Fp8Params& host_fp8() {
  static TorchModelHost* const model = [] {
    BlockList blocks = TinyModel().blocks();
    blocks.fp8_uses["mlp0.up"] = Fp8Use::kOneScale;
    return new TorchModelHost(std::move(blocks), YOKE_F64, 1, true);
  }();
  return *fp8_params(model->summary());
}

// Rounds and gathers on a rank, several times with other values, and compares each parameter with
// the numbers to which a product rounds it.
void check_rank(const Comm& comm, at::ScalarType compute) {
  const at::ScalarType master = compute == at::kDouble ? at::kDouble : at::kFloat;
  const FlatLayout layout(kModel, kUnit, comm.size(), 8);
  at::Tensor own = at::zeros({layout.shard_numel()}, master);
  DevicePool pool(at::kCPU);
  Fp8Shard shard(layout, comm.rank(), own, compute, host_fp8(), pool);
  EXPECT_EQ(shard.bytes(), layout.shard_numel());
  at::Tensor whole = at::zeros({layout.numel()}, compute);
  for (int step = 1; step <= 4; ++step) {
    const at::Tensor masters = whole_masters(layout, master, step);
    own.copy_(masters.narrow(0, comm.rank() * layout.shard_numel(), layout.shard_numel()));
    round_shards({&shard}, comm);
    for (int again = 0; again < 2; ++again) {
      shard.start_gather(comm).wait();
      shard.finish_gather(whole);
      for (const FlatLayout::Slot& slot : layout.slots()) {
        const auto of_param = [&](const at::Tensor& all) {
          return all.narrow(0, slot.offset, slot.numel);
        };
        const at::Tensor expected =
            ops::fp8::rounded(of_param(masters).to(compute), Rounding{Scaling::kTensor})
                .to(compute);
        EXPECT_TRUE(at::allclose(of_param(whole), expected, 0, 0, /*equal_nan=*/true))
            << "parameter " << slot.param << ", step " << step;
      }
    }
  }
}

TEST(Fp8Shard, GathersWhatAProductWouldRoundTo) {
  for (const int shards : {2, 3, 4}) {
    for (const at::ScalarType compute : {at::kDouble, at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(concat("shards ", shards, " ") + c10::toString(compute));
      on_ranks(yoke::Mesh({1, 1, shards, 1, 1}), [&](const Rank& rank) {
        YokePlan plan{};
        plan.world_size = shards;
        for (int32_t& degree : plan.degree) degree = 1;
        plan.degree[YOKE_DP_SHARD] = shards;
        check_rank(ptd::Comms::make(plan, true, false, rank.host).unshard, compute);
      });
    }
  }
}

}  // namespace
}  // namespace yoke::ptd::testing
