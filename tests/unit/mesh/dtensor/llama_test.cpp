// Runs the trainer's own Llama, whose code contains nothing about parallelism, on every mesh of tp
// and cp. Loss and gradients must equal those of a single rank.
#include "core/model/llama.hpp"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/config/run_config.hpp"
#include "core/kernels/ops.hpp"
#include "sdk/mesh/dtensor/wrap.hpp"
#include "tests/support/emulated_cuda.hpp"
#include "tests/support/fused_rms_norm.hpp"
#include "tests/unit/mesh/dtensor/on_mesh.hpp"
#include "yoke/model.hpp"

namespace yoke::mesh::testing {
namespace {

constexpr int64_t kBatch = 2, kSeqLen = 16, kVocab = 32;

struct Case {
  int cp, tp;
  bool sequence_parallel = true, loss_parallel = true;
  SequenceExchange exchange = SequenceExchange::kRing;
  SequenceOrder order = SequenceOrder::kHeadTail;
  bool tied = false;
  bool documents = false;  // each sequence has several documents
  int pieces = 1;
  at::ScalarType dtype = at::kDouble;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << "cp " << c.cp << " tp " << c.tp << (c.sequence_parallel ? " sp" : "")
       << (c.loss_parallel ? " lp" : "")
       << (c.exchange == SequenceExchange::kRing ? " ring" : " all_gather")
       << (c.order == SequenceOrder::kHeadTail ? " head_tail" : " plain") << (c.tied ? " tied" : "")
       << (c.documents ? " documents" : "") << " pieces " << c.pieces;
}

BlockList make_model(const Case& c) {
  ModelConfig config;
  config.family = "llama";
  config.dim = 32;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 4;
  config.ffn_dim = 48;
  config.vocab = kVocab;
  config.tied = c.tied;
  FamilyArgs args;
  args.param_dtype = dtype_of(c.dtype);
  args.seq_len = kSeqLen;
  return llama_family(config).make_blocks(args);
}

// Returns every parameter once. A tied parameter has the first of its names.
std::vector<std::pair<std::string, at::Tensor>> parameters(const BlockList& model) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& block : model.params) {
    for (const auto& [name, leaf] : block) {
      bool known = false;
      for (const auto& [other, tensor] : all) known = known || tensor.is_same(leaf);
      if (!known) all.emplace_back(name, leaf);
    }
  }
  return all;
}

at::Tensor values_of(const at::Tensor& leaf, int64_t seed) {
  return leaf.dim() == 1 ? 1 + 0.1 * numbers(leaf.sizes(), seed, leaf.scalar_type())
                         : 0.2 * numbers(leaf.sizes(), seed, leaf.scalar_type());
}

TorchInputs batch(const Case& c) {
  const at::Tensor tokens =
      numbers({kBatch, kSeqLen}, 77).abs().mul(1e6).to(at::kLong).remainder(kVocab);
  at::Tensor targets =
      numbers({kBatch, kSeqLen}, 78).abs().mul(1e6).to(at::kLong).remainder(kVocab);
  targets[0][3] = -100;
  const at::Tensor positions = at::arange(kSeqLen).expand({kBatch, kSeqLen}).contiguous();
  if (!c.documents) return {{"tokens", tokens}, {"targets", targets}, {"positions", positions}};
  const at::Tensor starts = at::zeros({kBatch, kSeqLen}, at::kLong);
  for (const int64_t start : {3, 4, 10}) starts[0].slice(0, start).fill_(start);
  starts[1].slice(0, 13).fill_(13);
  return {{"tokens", tokens},
          {"targets", targets},
          {"positions", positions - starts},
          {"document_starts", starts}};
}

at::Tensor run(const BlockList& model, const TorchInputs& inputs) {
  at::Tensor carry;
  for (const TorchBlock& block : model.blocks) carry = block.forward(carry, inputs);
  return carry;
}

struct Expected {
  explicit Expected(const Case& c) : model(make_model(c)) {
    int64_t seed = 1;
    for (auto& [name, leaf] : parameters(model)) leaf.set_data(values_of(leaf, seed++));
    const at::Tensor sum = run(model, batch(c));
    sum.backward();
    loss = sum.item<double>();
  }
  BlockList model;
  double loss;
};

// Returns the positions in the order in which the ranks of cp hold them.
at::Tensor sequence_order(const Case& c) {
  if (c.order == SequenceOrder::kPlain) return at::arange(kSeqLen);
  const std::vector<at::Tensor> parts = at::arange(kSeqLen).chunk(2 * c.cp);
  std::vector<at::Tensor> order;
  for (int r = 0; r < c.cp; ++r) {
    order.push_back(parts[r]);
    order.push_back(parts[2 * c.cp - 1 - r]);
  }
  return at::cat(order);
}

Placements lie_of(const TpHint& hint) {
  return placements({replicate(), hint.cut > 0 ? shard(hint.cut - 1) : replicate()});
}

// Calls body on every rank of the mesh, with the model on DTensors and a batch.
using Body = std::function<void(Mesh&, const BlockList&, const TorchInputs&)>;
void with_model(const Case& c, const Body& body) {
  on_mesh(
      {.cp = c.cp, .tp = c.tp},
      [&](Mesh& mesh) {
        const BlockList model = make_model(c);
        int64_t seed = 1;
        for (auto& [name, leaf] : parameters(model)) {
          const at::Tensor values = values_of(leaf, seed++);
          const Placements lie = lie_of(model.tp(name));
          convert_parameter(
              leaf, local_of(distribute_tensor(values, mesh, lie)).clone(), mesh, lie);
        }
        TorchInputs inputs;
        for (const auto& [role, tensor] : batch(c)) {
          inputs.emplace_back(role,
                              distribute_tensor(tensor.index_select(1, sequence_order(c)),
                                                mesh,
                                                placements({shard(1), replicate()})));
        }
        body(mesh, model, inputs);
      },
      [&](Mesh::Axis& cp, Mesh::Axis& tp) {
        cp.cuts_parameters = false;
        cp.exchange = c.exchange;
        cp.order = c.order;
        tp.sequence_parallel = c.sequence_parallel;
        tp.loss_parallel = c.loss_parallel;
        tp.pieces = c.pieces;
      });
}

class LlamaOnMesh : public ::testing::TestWithParam<Case> {};

void expect_loss_and_gradients_of_one_rank(const Case& c) {
  with_model(c, [&](Mesh&, const BlockList& model, const TorchInputs& inputs) {
    const Expected expected(c);
    const at::Tensor loss = run(model, inputs);
    loss.backward();
    EXPECT_NEAR(full_tensor(loss).item<double>() / expected.loss, 1, 1e-14);
    const auto plain = parameters(expected.model), got = parameters(model);
    for (size_t i = 0; i < got.size(); ++i) {
      const at::Tensor grad = full_tensor(got[i].second.grad());
      EXPECT_LE(difference(grad, plain[i].second.grad()), 1e-13) << got[i].first;
    }
  });
}

TEST_P(LlamaOnMesh, LossAndGradientsAreThoseOfOneRank) {
  expect_loss_and_gradients_of_one_rank(GetParam());
}

// LibTorch calls the operators of a CUDA device, and ours are those of the device, too.
TEST_P(LlamaOnMesh, ADeviceHasTheSameLossAndGradients) {
  const yoke::testing::FusedRmsNorm fused;
  const yoke::testing::EmulatedCuda cuda(/*everywhere=*/true);
  expect_loss_and_gradients_of_one_rank(GetParam());
}

TEST_P(LlamaOnMesh, GradientsOfWeightsCanComeLaterWithTheSameBits) {
  const Case c = GetParam();
  with_model(c, [&](Mesh& mesh, const BlockList& model, const TorchInputs& inputs) {
    run(model, inputs).backward();
    std::vector<at::Tensor> expected;
    for (const auto& [name, leaf] : parameters(model))
      expected.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));

    const at::Tensor loss = run(model, inputs);
    WeightQueue queue;
    ops::defer_weights(&queue);
    loss.backward();
    ops::defer_weights(nullptr);
    const auto got = parameters(model);
    const auto has_none = [](const auto& param) { return !param.second.grad().defined(); };
    // Each of the two layers has seven matrices. The gradient of a tied head joins that of the
    // embedding, which is there already.
    EXPECT_EQ(std::count_if(got.begin(), got.end(), has_none), c.tied ? 14 : 15);
    const at::NoGradGuard no_grad;
    // All operands that a product needs whole have been gathered before.
    mesh.trace().set_sink(
        [](const std::string& line) { EXPECT_EQ(line.find(" over "), std::string::npos) << line; });
    queue.run();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(placements_of(got[i].second.grad()), placements_of(expected[i])) << got[i].first;
      EXPECT_TRUE(at::equal(local_of(got[i].second.grad()), local_of(expected[i]))) << got[i].first;
    }
  });
}

// There are four exchanges of a kind for each layer, two of them in the backward, and one of a kind
// at the head. What is exchanged for the embedding, its gradient and the loss is not cut, because
// there is no product beside it.
TEST(Pieces, CutEveryExchangeBesideAProduct) {
  const auto count = [](const std::string& text, const std::string& what) {
    int found = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
    return found;
  };
  for (const int pieces : {1, 2, 4}) {
    with_model({.cp = 1, .tp = 2, .pieces = pieces},
               [&](Mesh& mesh, const BlockList& model, const TorchInputs& inputs) {
                 std::string traffic;
                 mesh.trace().set_sink([&](const std::string& line) { traffic += line; });
                 run(model, inputs).backward();
                 mesh.trace().set_sink({});
                 EXPECT_EQ(count(traffic, "all-gather"), 9 * pieces + 2);
                 EXPECT_EQ(count(traffic, "reduce-scatter"), 9 * pieces + 1);
               });
  }
}

// Counts the bytes that this thread has allocated and not freed.
struct Live : c10::MemoryReportingInfoBase {
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    bytes += size;
  }
  int64_t bytes = 0;
};

// Returns the bytes that rank 0 keeps from forward to backward.
int64_t kept_bytes(const Case& c) {
  int64_t kept = 0;
  with_model(c, [&](Mesh& mesh, const BlockList& model, const TorchInputs& inputs) {
    const auto live = std::make_shared<Live>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    const at::Tensor loss = run(model, inputs);
    mesh.gathers().forget();
    if (mesh.rank(0) == 0 && mesh.rank(1) == 0) kept = live->bytes;
  });
  return kept;
}

TEST(Memory, ActivationsFallWithTheRanksOfCp) {
  const auto alone = static_cast<double>(kept_bytes({1, 1}));
  for (const int cp : {2, 4}) {
    const auto kept = static_cast<double>(kept_bytes({cp, 1}));
    EXPECT_LE(kept, 1.1 * alone / cp) << "cp " << cp;
    EXPECT_GE(kept, 0.9 * alone / cp) << "cp " << cp;
  }
}

TEST(Memory, ActivationsFallWithTheRanksOfTpUnderSequenceParallelism) {
  const auto alone = static_cast<double>(kept_bytes({1, 1}));
  EXPECT_LE(static_cast<double>(kept_bytes({1, 2})), 0.7 * alone);
  EXPECT_LE(kept_bytes({1, 2}), kept_bytes({1, 2, false}));
}

constexpr auto kRing = SequenceExchange::kRing, kGather = SequenceExchange::kAllGather;
constexpr auto kPlainOrder = SequenceOrder::kPlain, kHeadTail = SequenceOrder::kHeadTail;
INSTANTIATE_TEST_SUITE_P(Meshes,
                         LlamaOnMesh,
                         ::testing::Values(Case{1, 1},
                                           Case{1, 2},
                                           Case{1, 2, false},
                                           Case{1, 2, true, false},
                                           Case{1, 4},
                                           Case{1, 4, true, true, kRing, kHeadTail, true},
                                           Case{2, 1},
                                           Case{2, 1, true, true, kRing, kPlainOrder},
                                           Case{2, 1, true, true, kGather},
                                           Case{4, 1, true, true, kGather, kPlainOrder},
                                           Case{4, 1},
                                           Case{2, 2},
                                           Case{2, 2, false, false, kGather, kHeadTail, true},
                                           Case{2, 4},
                                           Case{4, 2},
                                           Case{.cp = 1, .tp = 1, .documents = true},
                                           Case{.cp = 1, .tp = 2, .documents = true},
                                           Case{.cp = 2, .tp = 1, .documents = true},
                                           Case{4, 1, true, true, kRing, kPlainOrder, false, true},
                                           Case{4, 1, true, true, kGather, kHeadTail, false, true},
                                           Case{.cp = 2, .tp = 2, .documents = true},
                                           Case{.cp = 1, .tp = 2, .pieces = 3},
                                           Case{.cp = 1, .tp = 4, .tied = true, .pieces = 2},
                                           Case{.cp = 2, .tp = 2, .pieces = 2}));

}  // namespace
}  // namespace yoke::mesh::testing
