// Tests the two mechanisms on which ptd relies: unmodified torch::nn modules on distributed
// parameters, and a sharding of those parameters over a further axis.
#include <ATen/native/Resize.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include <cstring>

#include "sdk/mesh/dtensor/wrap.hpp"
#include "sdk/mesh/executor/flat_buffer.hpp"
#include "tests/unit/mesh/dtensor/on_mesh.hpp"

namespace yoke::mesh::testing {
namespace {

struct Mlp : torch::nn::Module {
  Mlp() {
    up = register_module("up", torch::nn::Linear(8, 32));
    down = register_module("down", torch::nn::Linear(32, 8));
    to(at::kDouble);
    torch::NoGradGuard no_grad;
    int64_t seed = 1;
    for (at::Tensor& p : parameters()) p.copy_(numbers(p.sizes(), seed++) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) { return down(at::gelu(up(x))); }
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// The plain module after a backward, whose gradients are the expected ones.
struct Plain {
  explicit Plain(const at::Tensor& input) : x(input.clone().requires_grad_()) {
    module.forward(x).pow(2).mean().backward();
  }
  Mlp module;
  at::Tensor x;
};

// The first layer is column-parallel, the second one row-parallel.
std::vector<Placement> plan() {
  return {shard(0), shard(0), shard(1), replicate()};
}

void convert(Mlp& mlp, Mesh& mesh) {
  size_t i = 0;
  for (at::Tensor& p : mlp.parameters()) {
    const Placements lie = placements({replicate(), plan()[i++]});
    const at::Tensor local = local_of(distribute_tensor(p.detach().clone(), mesh, lie)).clone();
    convert_parameter(p, local, mesh, lie);
  }
}

void expect_equal(Mlp& mlp, const at::Tensor& x, const Plain& plain, double bound) {
  const auto expected = plain.module.parameters();
  const auto got = mlp.parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(difference(full_tensor(got[i].grad()), expected[i].grad()), bound)
        << "gradient " << i;
  }
  EXPECT_LE(difference(full_tensor(x.grad()), plain.x.grad()), bound) << "gradient of the input";
}

constexpr double kRounding = 1e-16;

class Modules : public ::testing::TestWithParam<int> {};

TEST_P(Modules, LinearLayersTrainOnShardsWithoutKnowingOfThem) {
  for (const bool batched : {false, true}) {
    const at::Tensor input = batched ? numbers({2, 3, 8}, 9) : numbers({6, 8}, 9);
    on_mesh({.tp = GetParam()}, [&](Mesh& mesh) {
      const Plain plain(input);
      Mlp mlp;
      convert(mlp, mesh);
      const at::Tensor x = distribute_tensor(input, mesh, {}).detach().requires_grad_();
      const at::Tensor y = mlp.forward(x);
      EXPECT_EQ(y.sizes(), input.sizes());
      y.pow(2).mean().backward();
      expect_equal(mlp, x, plain, kRounding);
      EXPECT_EQ(placements_of(mlp.up->weight.grad())[1], shard(0)) << "lies as its parameter";
      EXPECT_EQ(placements_of(mlp.down->weight.grad())[1], shard(1));
    });
  }
}

TEST_P(Modules, ConvertedParametersAreTheModulesOwn) {
  on_mesh({.tp = GetParam()}, [&](Mesh& mesh) {
    Mlp mlp;
    convert(mlp, mesh);
    EXPECT_TRUE(is_dtensor(mlp.up->weight));
    EXPECT_TRUE(is_dtensor(mlp.parameters()[0]));
    EXPECT_TRUE(is_dtensor(mlp.named_parameters()["up.weight"]));
    EXPECT_EQ(local_of(mlp.up->weight).size(0), 32 / mesh.size(1));
    for (const at::Tensor& p : mlp.parameters()) revert_parameter(p);
    EXPECT_FALSE(is_dtensor(mlp.up->weight));
    EXPECT_EQ(mlp.up->weight.sizes(), at::IntArrayRef({32, 8}));
    EXPECT_EQ(mlp.up->weight.storage().nbytes(), 0u);
    EXPECT_TRUE(mlp.up->weight.requires_grad());
  });
}

// How the memory of a parameter is replaced between forward and backward, as FSDP does. kNone
// overwrites the memory and does not restore the values.
enum class Refill { kSameStorage, kNewMemory, kNone };

void refill(const at::Tensor& local, const at::Tensor& values, Refill how) {
  c10::StorageImpl* storage = local.storage().unsafeGetStorageImpl();
  const size_t n = storage->nbytes();
  std::memset(local.data_ptr(), 0x7f, n);
  if (how == Refill::kNone) return;
  if (how == Refill::kSameStorage) {
    at::native::resize_bytes_cpu(storage, 0);
    at::native::resize_bytes_cpu(storage, n);
  } else {
    storage->set_data_ptr_noswap(c10::GetAllocator(c10::kCPU)->allocate(n));
    storage->set_nbytes(n);
  }
  std::memcpy(storage->mutable_data(), values.const_data_ptr(), n);
}

double worst_gradient(int tp, Refill how) {
  double worst = 0;
  on_mesh({.tp = tp}, [&](Mesh& mesh) {
    const at::Tensor input = numbers({6, 8}, 9);
    const Plain plain(input);
    Mlp mlp;
    convert(mlp, mesh);
    const at::Tensor y = mlp.forward(distribute_tensor(input, mesh, {}));
    for (const at::Tensor& p : mlp.parameters()) refill(local_of(p), local_of(p).clone(), how);
    y.pow(2).mean().backward();
    double mine = 0;
    const auto expected = plain.module.parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      const at::Tensor grad = full_tensor(mlp.parameters()[i].grad());
      mine = std::max(mine, difference(grad, expected[i].grad()));
    }
    if (mesh.rank(1) == 0) worst = mine;
  });
  return worst;
}

TEST_P(Modules, MemoryOfParametersMayGoAndComeBetweenForwardAndBackward) {
  EXPECT_LE(worst_gradient(GetParam(), Refill::kSameStorage), kRounding);
  EXPECT_LE(worst_gradient(GetParam(), Refill::kNewMemory), kRounding);
  EXPECT_GE(worst_gradient(GetParam(), Refill::kNone), 1.0) << "the control must fail";
}

INSTANTIATE_TEST_SUITE_P(Tp, Modules, ::testing::Values(1, 2, 4));

// tp cuts the parameters along dim 0 or dim 1, and then they are sharded as FSDP does: every rank
// keeps half of its tp part, gathers it before use, frees it after forward, gathers it again for
// backward and reduces its gradient.
TEST(ShardedTwice, GradientsEqualThePlainModules) {
  on_world({.dp_shard = 2, .tp = 2}, [&](World& world) {
    const auto mesh = make_mesh(world);
    const Comm shards = comm_of(world, YOKE_AXIS_BIT(YOKE_DP_SHARD), "fsdp");
    const std::vector<at::Tensor> inputs{numbers({6, 8}, 9), numbers({6, 8}, 10)};
    Mlp mlp;
    convert(mlp, *mesh);
    std::vector<at::Tensor> kept;
    for (const at::Tensor& p : mlp.parameters()) {
      const at::Tensor& local = local_of(p);
      kept.push_back(local.chunk(2, 0)[shards.rank()].clone());
    }
    const auto gather = [&] {
      size_t i = 0;
      for (const at::Tensor& p : mlp.parameters()) {
        const at::Tensor whole = at::empty_like(local_of(p));
        shards.all_gather(whole, kept[i++]).wait();
        c10::StorageImpl* storage = local_of(p).storage().unsafeGetStorageImpl();
        auto memory = c10::GetAllocator(c10::kCPU)->allocate(whole.nbytes());
        std::memcpy(memory.get(), whole.const_data_ptr(), whole.nbytes());
        storage->set_data_ptr_noswap(std::move(memory));
        storage->set_nbytes(whole.nbytes());
      }
    };
    const auto free = [&] {
      for (const at::Tensor& p : mlp.parameters()) bind_storage(local_of(p), nullptr);
    };
    free();
    gather();
    const at::Tensor x = distribute_tensor(inputs[shards.rank()], *mesh, {});
    const at::Tensor y = mlp.forward(x);
    free();
    gather();
    y.pow(2).mean().backward();

    const Plain first(inputs[0]), second(inputs[1]);
    for (size_t i = 0; i < kept.size(); ++i) {
      const at::Tensor grad = mlp.parameters()[i].grad();
      const at::Tensor expected =
          first.module.parameters()[i].grad() + second.module.parameters()[i].grad();
      const at::Tensor part = at::empty_like(kept[i]);
      shards.reduce_scatter_sum(part, local_of(grad).contiguous()).wait();
      const at::Tensor of_tp =
          local_of(distribute_tensor(expected, *mesh, placements({replicate(), plan()[i]})));
      EXPECT_LE(difference(part, of_tp.chunk(2, 0)[shards.rank()]), kRounding) << "gradient " << i;
    }
  });
}

}  // namespace
}  // namespace yoke::mesh::testing
