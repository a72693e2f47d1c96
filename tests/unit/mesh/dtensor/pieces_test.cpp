// Tests exchanges in pieces: that they overlap with products, and that nothing else changes.
#include "sdk/mesh/dtensor/pieces.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "sdk/mesh/executor/block_runner.hpp"
#include "tests/unit/mesh/dtensor/on_mesh.hpp"

namespace yoke::mesh::testing {
namespace {

using ::testing::ElementsAre;

constexpr double kRounding = 1e-13;  // a product of some rows may add in another order

// What happened on a rank, in order.
using Events = std::vector<std::string>;

// Notes the start and the wait of each gather and reduce-scatter. Their results arrive in the wait
// and no earlier; until then they are NaN.
class RecordingBackend final : public c10d::Backend {
 public:
  RecordingBackend(c10::intrusive_ptr<c10d::Backend> inner, Events& events)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), events_(events) {}

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out,
                                                 at::Tensor& in,
                                                 const c10d::AllgatherOptions& opts) override {
    return start(out, [=, this]() mutable { inner_->_allgather_base(out, in, opts)->wait(); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& out, at::Tensor& in, const c10d::ReduceScatterOptions& opts) override {
    return start(out, [=, this]() mutable { inner_->_reduce_scatter_base(out, in, opts)->wait(); });
  }

 private:
  struct LateWork final : c10d::Work {
    explicit LateWork(std::function<void()> deliver) : deliver_(std::move(deliver)) {}
    bool wait(std::chrono::milliseconds) override {
      deliver_();
      return true;
    }
    std::function<void()> deliver_;
  };

  c10::intrusive_ptr<c10d::Work> start(const at::Tensor& out, std::function<void()> deliver) {
    out.fill_(NAN);
    const std::string number = std::to_string(started_++);
    events_.push_back("start " + number);
    return c10::make_intrusive<LateWork>([this, number, deliver = std::move(deliver)] {
      events_.push_back("wait " + number);
      deliver();
    });
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  Events& events_;
  int started_ = 0;
};

thread_local Events* observed = nullptr;

// Notes the operators of this name that its thread calls, also those inside of others.
class Observer {
 public:
  Observer(const char* name, Events& events)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&Observer::begin).scopes({at::RecordScope::FUNCTION}))) {
    observed = &events;
    name_ = name;
  }
  ~Observer() {
    at::removeCallback(handle_);
    observed = nullptr;
  }
  Observer(const Observer&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& f) {
    if (name_ == f.name()) observed->push_back(f.name());
    return nullptr;
  }
  static inline thread_local std::string name_;
  at::CallbackHandle handle_;
};

// Runs body on two ranks of tp that exchange in three pieces.
void on_recorded_mesh(const std::function<void(Mesh&, Events&)>& body) {
  on_world({.tp = 2}, [&](World& world) {
    Events events;
    const std::unique_ptr<Mesh> mesh = make_mesh(world, [&](Mesh::Axis&, Mesh::Axis& tp) {
      Communicator& comm = world.comm(YOKE_AXIS_BIT(YOKE_TP), "dtensor");
      tp.comm = Comm(
          c10::make_intrusive<RecordingBackend>(comm.process_group()->getBackend(at::kCPU), events),
          comm.size(),
          comm.rank());
      tp.sequence_parallel = true;
      tp.pieces = 3;
    });
    body(*mesh, events);
  });
}

Placements tp_only(const Placement& p) {
  return placements({replicate(), p});
}

// Returns a matrix that operators never redistribute.
at::Tensor parameter(const at::Tensor& values, Mesh& mesh, const Placement& cut) {
  at::Tensor leaf = values.clone().requires_grad_();
  const at::Tensor local = local_of(distribute_tensor(values, mesh, tp_only(cut))).clone();
  convert_parameter(leaf, local, mesh, tp_only(cut));
  return leaf;
}

// A product is observed by the copy that follows it: it puts the rows in order. The rows of a piece
// that was computed before they had arrived would be NaN.
TEST(Pieces, TheNextPieceIsGatheredWhileTheProductOfOneIsComputed) {
  on_recorded_mesh([](Mesh& mesh, Events& events) {
    const at::Tensor rows = numbers({12, 4}, 1), matrix = numbers({4, 6}, 2);
    const at::Tensor x = distribute_tensor(rows, mesh, tp_only(shard(0)));
    const at::Tensor w = parameter(matrix, mesh, shard(1));
    at::Tensor y;
    {
      const Observer copies("aten::copy_", events);
      y = at::mm(x, w);
    }
    const std::string copy = "aten::copy_";
    EXPECT_THAT(events,
                ElementsAre("start 0",
                            "start 1",
                            "wait 0",
                            copy,
                            copy,
                            "start 2",
                            "wait 1",
                            copy,
                            copy,
                            "wait 2",
                            copy,
                            copy));
    EXPECT_EQ(placements_of(x), tp_only(replicate())) << "the gathered rows must stay";
    EXPECT_TRUE(at::equal(local_of(x), rows));
    EXPECT_LE(difference(local_of(y), rows.mm(local_of(w))), kRounding);
  });
}

TEST(Pieces, TheProductOfTheNextPieceIsComputedWhileOneIsReduced) {
  on_recorded_mesh([](Mesh& mesh, Events& events) {
    const at::Tensor rows = numbers({12, 4}, 1), matrix = numbers({4, 6}, 2);
    const at::Tensor x = distribute_tensor(rows, mesh, tp_only(shard(1)));
    const at::Tensor w = parameter(matrix, mesh, shard(0));
    const at::Tensor y = at::mm(x, w);
    at::Tensor part;
    {
      const Observer products("aten::mm", events);
      part = redistribute(y, tp_only(shard(0)));
    }
    const std::string mm = "aten::mm";
    EXPECT_THAT(
        events,
        ElementsAre(mm, "start 0", mm, "start 1", "wait 0", mm, "start 2", "wait 1", "wait 2"));
    EXPECT_LE(difference(local_of(part), rows.mm(matrix).chunk(2)[mesh.rank(1)]), kRounding);
  });
}

// A layer of two matrices, of which the first is cut by columns and the second by rows, and of
// another matrix beside the first. The gradient of x is a sum of two products.
struct Layer {
  at::Tensor x, first, beside, second;  // [B, S, D], [D, F], [D, F], [F, D]
  at::Tensor run() const {
    const at::Tensor rows = x.flatten(0, 1);
    const at::Tensor hidden = rows.mm(first).tanh() * rows.mm(beside);
    return (x + hidden.mm(second).view(x.sizes())).sin();
  }
  std::vector<at::Tensor> leaves() const { return {x, first, beside, second}; }
};

Layer layer_of(int64_t batch, int64_t length) {
  return {numbers({batch, length, 6}, 1).requires_grad_(),
          numbers({6, 8}, 2).requires_grad_(),
          numbers({6, 8}, 3).requires_grad_(),
          numbers({8, 6}, 4).requires_grad_()};
}

int64_t count(const std::string& text, const std::string& what) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++found;
  return found;
}

// A forward gathers x and reduces its result; the backward reduces the gradient of x.
void expect_layer(Mesh& mesh, const Layer& plain) {
  const at::Tensor expected = plain.run();
  expected.sum().backward();
  const bool even = plain.x.size(1) % mesh.size(1) == 0;
  const Placements cut = tp_only(even ? shard(1) : replicate());
  const Layer layer{distribute_tensor(plain.x.detach(), mesh, cut).detach().requires_grad_(),
                    parameter(plain.first.detach(), mesh, shard(1)),
                    parameter(plain.beside.detach(), mesh, shard(1)),
                    parameter(plain.second.detach(), mesh, shard(0))};
  std::string traffic;
  mesh.trace().set_sink([&](const std::string& line) { traffic += line; });
  const at::Tensor y = layer.run();
  const int64_t pieces =
      even ? std::min<int64_t>(mesh.axis(1).pieces, plain.x.size(1) / mesh.size(1)) : 0;
  EXPECT_EQ(count(traffic, "all-gather"), pieces);
  EXPECT_EQ(count(traffic, "reduce-scatter"), pieces);
  y.sum().backward();
  EXPECT_EQ(count(traffic, "reduce-scatter"), 2 * pieces);
  mesh.trace().set_sink({});
  EXPECT_LE(difference(full_tensor(y.detach()), expected.detach()), kRounding);
  for (size_t i = 0; i < 4; ++i) {
    const at::Tensor gradient = full_tensor(layer.leaves()[i].grad());
    EXPECT_LE(difference(gradient, plain.leaves()[i].grad()), kRounding) << i;
  }
}

// Pieces need not have equal sizes, and there may be more of them than rows.
TEST(Pieces, ValuesAndGradientsDoNotDependOnThem) {
  for (const int ranks : {2, 4}) {
    for (const int pieces : {1, 2, 3, 5}) {
      const auto body = [&](Mesh& mesh) {
        for (const auto& [batch, length] : {std::pair(1, 8), {3, 8}, {2, 12}, {2, 20}, {2, 7}})
          expect_layer(mesh, layer_of(batch, length));
      };
      on_mesh({.tp = ranks}, body, [&](Mesh::Axis&, Mesh::Axis& tp) {
        tp.sequence_parallel = true;
        tp.pieces = pieces;
      });
    }
  }
}

// ---- Pending products ----

// The product of a matrix that is cut by rows.
struct RowParallel {
  explicit RowParallel(Mesh& mesh)
      : x(distribute_tensor(numbers({8, 4}, 1), mesh, tp_only(shard(1)))),
        w(parameter(numbers({4, 6}, 2), mesh, shard(0))),
        y(at::mm(x, w)) {}
  at::Tensor x, w, y;
  at::Tensor expected = numbers({8, 4}, 1).mm(numbers({4, 6}, 2));
};

void on_pieces(const std::function<void(Mesh&)>& body) {
  on_mesh({.tp = 2}, body, [](Mesh::Axis&, Mesh::Axis& tp) {
    tp.sequence_parallel = true;
    tp.pieces = 2;
  });
}

TEST(PendingProducts, HaveTheirValueForEveryReader) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> readers{
      [](const at::Tensor& t) { return t; },
      [](const at::Tensor& t) { return t.relu(); },
      [](const at::Tensor& t) { return t + t; },
      [](const at::Tensor& t) { return at::add(t, t, 3); },
      [](const at::Tensor& t) {
        return t - t.view({2, 4, 6}).view({8, 6}) * 2;
      },
      [](const at::Tensor& t) { return t.t().reshape({48}); },
      [](const at::Tensor& t) {
        return t.view({2, 4, 6}).relu() + t.view({2, 4, 6}).sin();
      },
      [](const at::Tensor& t) { return t.narrow(0, 2, 3).clone(); }};
  on_pieces([&](Mesh& mesh) {
    for (const auto& reader : readers) {
      const RowParallel product(mesh);
      EXPECT_FALSE(mesh.pending().empty());
      EXPECT_LE(difference(full_tensor(reader(product.y)), reader(product.expected)), kRounding);
      EXPECT_LE(difference(full_tensor(product.y), product.expected), kRounding);
    }
    EXPECT_TRUE(mesh.pending().empty());
  });
}

TEST(PendingProducts, HaveTheirValueOnEachRank) {
  on_pieces([](Mesh& mesh) {
    const RowParallel one(mesh), other(mesh);
    const at::Tensor mine = local_of(one.x).mm(local_of(one.w));
    EXPECT_LE(difference(local_of(one.y), mine), kRounding);
    EXPECT_LE(difference(to_local(other.y.view({2, 4, 6})).detach().view({8, 6}), mine), kRounding);
  });
}

TEST(PendingProducts, AreComputedBeforeAnOperandIsWrittenTo) {
  on_pieces([](Mesh& mesh) {
    const RowParallel product(mesh);
    product.x.mul_(2);
    EXPECT_LE(difference(full_tensor(product.y), product.expected), kRounding);
  });
}

TEST(PendingProducts, AreNeverComputedIfNobodyReadsThem) {
  on_pieces([](Mesh& mesh) {
    Events events;
    { const RowParallel product(mesh); }
    const Observer products("aten::mm", events);
    EXPECT_TRUE(mesh.pending().empty());
    mesh.pending().compute_all();
    EXPECT_THAT(events, ElementsAre());
  });
}

// The parameters of a block may be freed when it has run. Its output is pending if it is the
// product of a matrix that is cut by rows, and the gradient of its input if it is cut by columns.
TEST(PendingProducts, DoNotOutliveTheirBlock) {
  on_pieces([](Mesh& mesh) {
    const at::Tensor rows = numbers({8, 4}, 1), matrix = numbers({4, 6}, 2),
                     dy = numbers({8, 6}, 3);
    for (const int cut : {0, 1}) {
      const at::Tensor w = parameter(matrix, mesh, shard(cut));
      const TorchBlock block{
          "block", nullptr, [&](const at::Tensor& x, const TorchInputs&) { return at::mm(x, w); }};
      BlockRunner runner({&block}, {{.end = 1, .from = 1, .to = 1}}, {0, 0}, nullptr, &mesh);
      const std::vector<TorchInputs> inputs(1);
      runner.begin_step(inputs, {at::Tensor()});
      runner.put(0, 0, distribute_tensor(rows, mesh, tp_only(shard(1 - cut))));
      runner.forward({.kind = ActionKind::kForward, .block = 0, .micro = 0, .save = Save::kAll});
      const at::Tensor y = runner.take(0, 0).detach();
      if (cut == 1) {
        runner.put(0, 0, distribute_tensor(dy, mesh, tp_only(shard(1))));
        runner.backward({.kind = ActionKind::kBackward, .block = 0, .micro = 0});
      }
      local_of(w).fill_(NAN);
      EXPECT_LE(difference(full_tensor(y), rows.mm(matrix)), kRounding);
      if (cut == 0) continue;
      const at::Tensor dx = runner.take(0, 0).detach();
      EXPECT_LE(difference(full_tensor(dx), dy.mm(matrix.t())), kRounding);
    }
  });
}

}  // namespace
}  // namespace yoke::mesh::testing
