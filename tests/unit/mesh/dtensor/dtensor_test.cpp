// Tests the public functions and their errors.
#include "sdk/mesh/dtensor/dtensor.hpp"

#include <gmock/gmock.h>

#include "tests/unit/mesh/dtensor/on_mesh.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Placements tp_only(const Placement& p) {
  return placements({replicate(), p});
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

TEST(DTensor, KnowsHowItLies) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor whole = numbers({4, 6}, 1);
    const at::Tensor t = distribute_tensor(whole, mesh, tp_only(shard(1)));
    EXPECT_EQ(t.sizes(), whole.sizes());
    EXPECT_EQ(local_of(t).size(1), 3);
    EXPECT_EQ(placements_of(t), tp_only(shard(1)));
    EXPECT_EQ(&mesh_of(t), &mesh);
    EXPECT_EQ(difference(full_tensor(t), whole), 0);
    EXPECT_THAT(refusal([&] { placements_of(whole); }), HasSubstr("is not distributed"));
    EXPECT_ANY_THROW(t.data_ptr()) << "there is no memory of the whole";
  });
}

// A function f that only changes placements has d/dx sum(f(x) * c) = c, whatever it communicates.
TEST(DTensor, MovingIsDifferentiable) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor whole = numbers({4, 6}, 1), c = numbers({4, 6}, 2);
    for (const Placement& from : {replicate(), shard(0), shard(1), partial()}) {
      for (const Placement& to : {replicate(), shard(0), shard(1), partial()}) {
        const at::Tensor x = whole.clone().requires_grad_();
        const at::Tensor there =
            redistribute(distribute_tensor(x, mesh, tp_only(from)), tp_only(to));
        (full_tensor(there) * c).sum().backward();
        EXPECT_EQ(difference(x.grad(), c), 0) << to_string(from) << " -> " << to_string(to);
      }
    }
  });
}

TEST(DTensor, LocalTensorsComeAndGoWithTheirGradients) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor mine = numbers({2, 3}, mesh.rank(1)).requires_grad_();
    const at::Tensor t = from_local(mine, mesh, tp_only(shard(0)), {4, 3});
    const at::Tensor local = to_local(t * 3);
    EXPECT_EQ(difference(local, mine.detach() * 3), 0);
    local.sum().backward();
    EXPECT_EQ(difference(mine.grad(), at::full({2, 3}, 3.0, at::kDouble)), 0);
  });
}

TEST(DTensor, AnOperatorWithoutARuleIsRefusedByName) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor t = distribute_tensor(numbers({4, 6}, 1), mesh, tp_only(shard(1)));
    EXPECT_THAT(refusal([&] { at::kthvalue(t, 2); }),
                AllOf(HasSubstr("aten::kthvalue"),
                      HasSubstr("S(1)"),
                      HasSubstr("[4, 6]"),
                      HasSubstr("no rule")));
    EXPECT_THAT(refusal([&] { at::bernoulli(t); }), HasSubstr("no rule"))
        << "ranks would not draw the same numbers";
  });
}

TEST(DTensor, ParametersAreNeverMoved) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    std::string traffic;
    mesh.trace().set_sink([&](const std::string& line) { traffic += line + "\n"; });
    at::Tensor w = numbers({4, 4}, 1).requires_grad_();
    const Placements lie = tp_only(shard(1));
    convert_parameter(
        w, local_of(distribute_tensor(w.detach().clone(), mesh, lie)).clone(), mesh, lie);
    // The activation is far larger than the weight. It must still be the activation that is
    // redistributed, because parameters never are.
    const at::Tensor x = distribute_tensor(numbers({512, 4}, 2), mesh, tp_only(shard(0)));
    const at::Tensor y = x.mm(w.t());
    EXPECT_EQ(placements_of(w), lie);
    EXPECT_THAT(traffic, HasSubstr("aten::mm"));
    EXPECT_LE(difference(full_tensor(y.detach()), numbers({512, 4}, 2).mm(numbers({4, 4}, 1).t())),
              1e-14);
  });
}

// Half a row of [2, 6] has three elements, which are no whole rows of [6, 2], so the cut does not
// survive. A view of an activation is gathered then. A view of a parameter is refused, and the
// parameter stays cut.
TEST(DTensor, AViewNeverGathersAParameter) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const Placements cut = tp_only(shard(1));
    const at::Tensor activation = distribute_tensor(numbers({2, 6}, 1), mesh, cut);
    EXPECT_EQ(difference(full_tensor(activation.view({6, 2})), numbers({2, 6}, 1).view({6, 2})), 0);

    at::Tensor w = numbers({2, 6}, 1).requires_grad_();
    convert_parameter(
        w, local_of(distribute_tensor(w.detach().clone(), mesh, cut)).clone(), mesh, cut);
    EXPECT_THAT(refusal([&] { w.view({6, 2}); }), HasSubstr("gather a parameter"));
    EXPECT_EQ(placements_of(w), cut);
  });
}

// In PyTorch 2.11 _foreach_mul_ silently leaves Partial gradients as they are, so clipping under TP
// with SP misses the norms.
TEST(DTensor, ClippingReachesPartialGradients) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor a = distribute_tensor(numbers({6}, 1), mesh, tp_only(partial()));
    const at::Tensor b = distribute_tensor(numbers({6, 2}, 2), mesh, tp_only(shard(0)));
    const at::Tensor plain = numbers({3}, 3);
    at::_foreach_mul_({a, b, plain}, 0.5);
    EXPECT_LE(difference(full_tensor(a), numbers({6}, 1) * 0.5), 1e-16);
    EXPECT_LE(difference(full_tensor(b), numbers({6, 2}, 2) * 0.5), 1e-16);
    EXPECT_LE(difference(plain, numbers({3}, 3) * 0.5), 1e-16) << "mixed lists are fine";
  });
}

TEST(DTensor, NormsAreThoseOfTheWhole) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor whole = numbers({6, 2}, 1);
    for (const Placement& p : {shard(0), shard(1), partial(), replicate()}) {
      const at::Tensor norm = at::linalg_vector_norm(distribute_tensor(whole, mesh, tp_only(p)), 2);
      EXPECT_NEAR(norm.item<double>(), at::linalg_vector_norm(whole, 2).item<double>(), 1e-15);
    }
  });
}

// The linear layer of torch::nn does `output += bias` on a Partial tensor.
TEST(DTensor, AnInPlaceOperatorOnAPartialTensorIsNotLost) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor t = distribute_tensor(numbers({4}, 1), mesh, tp_only(partial()));
    t.add_(distribute_tensor(numbers({4}, 2), mesh, {}));
    EXPECT_LE(difference(full_tensor(t), numbers({4}, 1) + numbers({4}, 2)), 1e-16);
  });
}

TEST(DTensor, WhatWasGatheredIsForgottenWhenItIsWrittenTo) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor t = distribute_tensor(numbers({4, 2}, 1), mesh, tp_only(shard(0)));
    const at::Tensor before = t.view({8}).cumsum(0);  // an operator that gathers the view, not t
    t.mul_(2);
    EXPECT_LE(difference(full_tensor(t.view({8}).cumsum(0)), full_tensor(before) * 2), 1e-15);
  });
}

TEST(DTensor, EveryOperatorCanBePrinted) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    std::vector<std::string> lines;
    mesh.trace().set_sink([&](const std::string& line) { lines.push_back(line); });
    const at::Tensor x = distribute_tensor(numbers({4, 6}, 1), mesh, tp_only(shard(1)));
    const at::Tensor w = distribute_tensor(numbers({6, 4}, 2), mesh, tp_only(shard(0)));
    lines.clear();
    at::relu(x.mm(w));
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], "aten::mm  [R, S(1)], [R, S(0)] -> [R, P(sum)]");
    EXPECT_EQ(lines[1], "aten::relu  [R, P(sum)] -> [R, R]  | all-reduce over tp (128 bytes);");
  });
}

// Columns of logits may be masked: the first one of each rank, all of a rank, or by a large number.
TEST(DTensor, LogSoftmaxOverCutColumnsEqualsThatOfPlainRows) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor logits =
        numbers({5, 7}, 1) * 9;  // rank 0 has four of the columns, rank 1 three
    logits.select(1, 0).fill_(-INFINITY);
    logits.select(1, 4).fill_(-1e9);
    logits[1].narrow(0, 4, 3).fill_(-INFINITY);
    logits[2].narrow(0, 0, 4).fill_(-INFINITY);
    const at::Tensor dy = numbers({5, 7}, 2);
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const double bound = type == at::kDouble ? 1e-14 : 1e-5;
      const at::Tensor plain = logits.to(type, false, true).requires_grad_();
      const at::Tensor expected = at::log_softmax(plain, 1);
      expected.backward(dy.to(type));
      const at::Tensor cut =
          distribute_tensor(logits.to(type), mesh, tp_only(shard(1))).detach().requires_grad_();
      const at::Tensor got = at::log_softmax(cut, 1);
      const at::Tensor cut_dy = distribute_tensor(dy.to(type), mesh, tp_only(shard(1)));
      got.backward(cut_dy);
      EXPECT_TRUE(at::allclose(full_tensor(got.detach()), expected.detach(), bound, bound));
      EXPECT_LE(difference(full_tensor(cut.grad()), plain.grad()), bound);
      EXPECT_TRUE(at::equal(full_tensor(cut_dy), dy.to(type))) << "others may use it";
    }
  });
}

// Returns the gradient of the loss's logits, and the loss; scale: gradient of the loss.
std::pair<at::Tensor, at::Tensor> loss_of(const at::Tensor& logits,
                                          const at::Tensor& targets,
                                          double scale) {
  const at::Tensor leaf = logits.detach().requires_grad_();
  const at::Tensor loss =
      at::cross_entropy_loss(leaf, targets, {}, at::Reduction::Sum, /*ignore_index=*/-100);
  (loss * scale).backward();
  return {is_dtensor(loss) ? full_tensor(loss.detach()) : loss.detach(),
          is_dtensor(leaf) ? full_tensor(leaf.grad()) : leaf.grad()};
}

// Rows are cut along cp, columns along tp; a row has no target, one has a target whose column is
// masked, one has its only finite columns on one rank. There are more rows than a group has.
TEST(DTensor, CrossEntropyOverCutRowsAndColumnsEqualsThatOfPlainRows) {
  for (const bool loss_parallel : {true, false}) {
    const auto body = [](Mesh& mesh) {
      const int64_t rows = 40, columns = 2501;  // rank 0 along tp has one column more
      const at::Tensor logits = numbers({rows, columns}, 1) * 9;
      logits[1].narrow(0, 1200, 1301).fill_(-INFINITY);
      logits[2].narrow(0, 0, 1300).fill_(-INFINITY);
      logits.select(1, 17).fill_(-INFINITY);
      const at::Tensor targets = (at::arange(rows, at::kLong) * 61).remainder(1200);
      targets[2] = 2500;
      targets[3] = -100;
      targets.narrow(0, 20, 3).fill_(-100);
      for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
        const double bound = type == at::kDouble ? 1e-14 : 1e-6;
        const auto [expected, gradient] = loss_of(logits.to(type), targets, 0.25);
        ASSERT_TRUE(expected.isfinite().item<bool>());
        for (const Placements& cut : {placements({shard(0), shard(1)}),
                                      placements({replicate(), shard(1)}),
                                      placements({shard(0), replicate()}),
                                      placements({shard(0, 4), shard(0)}),
                                      placements({shard(1), shard(1)})}) {
          const at::Tensor x = distribute_tensor(logits.to(type), mesh, cut);
          const auto [loss, dx] = loss_of(x, targets, 0.25);
          EXPECT_LE(std::abs((loss / expected).item<double>() - 1), bound) << to_string(cut, 2);
          EXPECT_LE(difference(dx, gradient), bound) << to_string(cut, 2);
          const at::Tensor spread = distribute_tensor(targets, mesh, placements({shard(0)}));
          EXPECT_TRUE(at::equal(loss_of(x, spread, 0.25).second, dx)) << to_string(cut, 2);
        }
      }
    };
    on_mesh({.cp = 2, .tp = 2}, body, [&](Mesh::Axis&, Mesh::Axis& tp) {
      tp.loss_parallel = loss_parallel;
    });
  }
}

// The backward of a loss may not change logits that something else reads.
TEST(DTensor, CrossEntropyKeepsItsLogitsAndCommunicatesOnce) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor logits = numbers({5, 6}, 1), targets = at::arange(5, at::kLong);
    const at::Tensor x = distribute_tensor(logits, mesh, tp_only(shard(1))).detach();
    x.requires_grad_();
    std::vector<std::string> lines;
    mesh.trace().set_sink([&](const std::string& line) { lines.push_back(line); });
    const at::Tensor loss = at::cross_entropy_loss(x, targets, {}, at::Reduction::Sum);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_EQ(
        lines[0],
        "aten::cross_entropy_loss  [R, S(1)] -> [R, P(sum)]  | all-gather over tp (80 bytes);");
    loss.backward();
    mesh.trace().set_sink({});
    EXPECT_TRUE(at::equal(full_tensor(x.detach()), logits));
    targets[3] = 6;
    EXPECT_THAT(refusal([&] { at::cross_entropy_loss(x, targets, {}, at::Reduction::Sum); }),
                HasSubstr("target 6; allowed: 0 to 5"));
  });
}

TEST(DTensor, CrossEntropyNoticesLogitsThatHaveChangedBeforeItsBackward) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor leaf = distribute_tensor(numbers({5, 6}, 1), mesh, tp_only(shard(1))).detach();
    leaf.requires_grad_();
    const at::Tensor targets = at::arange(5, at::kLong), x = leaf * 2;
    const at::Tensor loss = at::cross_entropy_loss(x, targets, {}, at::Reduction::Sum);
    x.detach().mul_(2);
    EXPECT_ANY_THROW(loss.backward());
    const at::Tensor other = at::cross_entropy_loss(leaf * 2, targets, {}, at::Reduction::Sum);
    EXPECT_ANY_THROW(other.backward({}, std::nullopt, /*create_graph=*/true));
  });
}

// Losses of another kind than a language model's are composed by LibTorch.
TEST(DTensor, OtherCrossEntropiesEqualThoseOfPlainRows) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    const at::Tensor logits = numbers({5, 6}, 1), targets = at::arange(5, at::kLong);
    const at::Tensor x = distribute_tensor(logits, mesh, tp_only(shard(1)));
    const auto both_equal = [&](const auto& loss) {
      EXPECT_LE(difference(full_tensor(loss(x)), loss(logits)), 1e-14);
    };
    both_equal([&](const at::Tensor& t) { return at::cross_entropy_loss(t, targets); });
    both_equal([&](const at::Tensor& t) {
      return at::cross_entropy_loss(t, targets, {}, at::Reduction::None);
    });
    both_equal([&](const at::Tensor& t) {
      return at::cross_entropy_loss(t, targets, {}, at::Reduction::Sum, -100, 0.1);
    });
  });
}

TEST(DTensor, PlacementsMustFit) {
  on_mesh({.tp = 2}, [](Mesh& mesh) {
    EXPECT_THAT(refusal([&] { distribute_tensor(numbers({4}, 1), mesh, tp_only(shard(1))); }),
                HasSubstr("do not fit a tensor of 1 dims"));
    EXPECT_THAT(refusal([&] { from_local(numbers({4}, 1), mesh, tp_only(shard(0)), {4}); }),
                HasSubstr("other sizes"));
  });
}

}  // namespace
}  // namespace yoke::mesh::testing
