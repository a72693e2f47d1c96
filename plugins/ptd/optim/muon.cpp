// Runs Muon for the hidden matrices of a model, and AdamW for everything else.
//
// An orthogonalization needs the whole matrix, but a rank may have only a part of it. Each rank
// advances the moments of its own elements. Unit by unit, the ranks then gather what is to be
// orthogonalized, in the layout of the unit's parameters, while they work on the unit before. A
// rank orthogonalizes every matrix of which it has elements, and updates these elements. A shard is
// a contiguous range, so a matrix that lies in several shards is orthogonalized by several ranks,
// and more ranks than matrices in a unit save no time. The results need not be sent, as they would
// be if each matrix had one owner.
//
// The products run in the compute type, in bf16 for fp16 runs, where the elements of a small
// gradient would underflow.
#include "yoke/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <memory>

#include "plugins/ptd/optim/optimizer.hpp"

namespace yoke::ptd {
namespace {

// Returns orthogonal(x) of the contract. x: [rows, columns].
at::Tensor orthogonal(at::Tensor x) {
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor norm = at::linalg_vector_norm(x, 2, {}, false, wide).clamp_min(YOKE_MUON_EPS);
  x = (x / norm).to(x.scalar_type());
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  for (int i = 0; i < YOKE_MUON_REPETITIONS; ++i) {
    const at::Tensor s = x.mm(x.t());
    const at::Tensor factor = at::addmm(s, s, s, YOKE_MUON_B, YOKE_MUON_C);
    x = at::addmm(x, factor, x, YOKE_MUON_A, 1);
  }
  return tall ? x.t() : x;
}

// The elements of a hidden matrix that this rank has. Tensors are flat views of the state.
struct Matrix {
  at::Tensor param, grad, exp_avg;
  int64_t rows, columns;
  int64_t begin;     // index of the first of these elements in the matrix
  int64_t in_shard;  // and in the shard of the unit
  int64_t in_unit;   // index of the matrix's first element in the whole unit
  double weight_decay;

  double scale() const { return yoke_muon_scale(rows, columns); }
};

// A unit that has hidden matrices, maybe none of them on this rank.
struct MatrixUnit {
  int64_t numel, shard_numel;
  std::vector<Matrix> matrices;
};

// The matrices of a unit before their orthogonalization. They stay alive if an update fails while
// they are gathered.
struct Gathering {
  at::Tensor shard, whole;  // tensors in the layout of the unit
  Work work;
};

bool contains_matrix(const FlatLayout& layout, const ModelSpec& model) {
  return std::any_of(layout.slots().begin(), layout.slots().end(), [&](const auto& slot) {
    return model.params[slot.param].muon_rows > 0;
  });
}

// Returns the parts of the spans that lie outside of the ranges, which are in order.
std::vector<FlatSpan> without(const std::vector<FlatSpan>& spans,
                              const std::vector<FlatRange>& ranges) {
  std::vector<FlatSpan> rest;
  for (const FlatSpan& span : spans) {
    int64_t done = span.begin;
    const int64_t end = span.begin + span.count;
    const auto add = [&](int64_t to) {
      FlatSpan part = span;
      part.begin = done;
      part.count = to - done;
      if (part.count > 0) rest.push_back(part);
    };
    for (const FlatRange& range : ranges) {
      if (range.begin < done || range.begin >= end) continue;
      add(range.begin);
      done = range.begin + range.count;
    }
    add(end);
  }
  return rest;
}

class Muon final : public Optimizer {
 public:
  Muon(const YokeOptimizer& config,
       const ShardState& state,
       const ModelSpec& model,
       const Comm& unshard)
      : Optimizer(state),
        config_(config),
        unshard_(unshard),
        type_(state.dtypes.compute == at::kHalf ? at::kBFloat16 : state.dtypes.compute) {
    const std::vector<FlatRange> ranges = ranges_of_matrices(state, model);
    moments_ = {Moment("exp_avg", state.params, ranges)};
    for (const ShardState::UnitShard& unit : state.units)
      if (unit.trainable && contains_matrix(unit.layout, model)) add(unit, state, model);
    YokeOptimizer adamw = config;
    adamw.kind = YOKE_ADAMW;
    rest_ = make_adamw(adamw, state, without(state.spans, ranges));
    for (const Moment& moment : rest_->moments()) moments_.push_back(moment);
  }

  void begin_step(int64_t step, double lr) override {
    Optimizer::begin_step(step, lr);
    rest_->begin_step(step, lr);
  }

  // The matrices come first, because AdamW may scale all gradients in place.
  void update(double scale) override {
    update_matrices(lr(), config_.momentum, [&](const at::Tensor& grad) {
      return grad.to(master_type()).mul(scale);
    });
    rest_->update(scale);
  }

  // A device cannot return early, so a skipped step uses a learning rate of 0 and a decay rate of
  // 1. Its gradients are replaced by 0, because 0 * NaN would still be NaN.
  void update_with(const ClipTensors& clip) override {
    const at::Tensor go = (1 - clip.skip).to(at::kDouble), goes = go.to(at::kBool);
    const at::Tensor divisor =
        clip.divisor.defined() ? at::where(goes, clip.divisor, 1.0) : at::Tensor();
    update_matrices(fp32_lr_ * go, 1 - go * (1 - config_.momentum), [&](const at::Tensor& grad) {
      const at::Tensor kept = at::where(goes, grad.to(master_type()), 0.0);
      return divisor.defined() ? kept.div(divisor) : kept;
    });
    rest_->update_with(clip);
  }

 private:
  static std::vector<FlatRange> ranges_of_matrices(const ShardState& state,
                                                   const ModelSpec& model) {
    std::vector<FlatRange> ranges;
    for (const ShardState::UnitShard& unit : state.units) {
      for (const FlatLayout::Slot& slot : unit.layout.slots()) {
        const ShardPiece piece = unit.layout.piece(slot, state.shard);
        if (model.params[slot.param].muon_rows > 0 && piece.count > 0)
          ranges.push_back({unit.begin + piece.offset, piece.count});
      }
    }
    return ranges;
  }

  void add(const ShardState::UnitShard& unit, const ShardState& state, const ModelSpec& model) {
    units_.push_back({unit.layout.numel(), unit.layout.shard_numel(), {}});
    for (const FlatLayout::Slot& slot : unit.layout.slots()) {
      const ParamSpec& param = model.params[slot.param];
      const ShardPiece piece = unit.layout.piece(slot, state.shard);
      if (param.muon_rows == 0 || piece.count == 0) continue;
      const int64_t at = unit.begin + piece.offset;
      units_.back().matrices.push_back({state.params.narrow(0, at, piece.count),
                                        state.grads.narrow(0, at, piece.count),
                                        moments_[0].of(at, piece.count),
                                        param.muon_rows,
                                        param.numel / param.muon_rows,
                                        piece.begin,
                                        piece.offset,
                                        slot.offset,
                                        param.decay ? config_.weight_decay : 0});
    }
  }

  at::ScalarType master_type() const { return moments_[0].values.scalar_type(); }

  // Advances the moments of a matrix. Returns this rank's elements of what is orthogonalized. keep:
  // factor of the moments.
  template <class Number, class Clipped>
  at::Tensor advance(const Matrix& m, const Number& keep, const Clipped& clipped) const {
    const at::Tensor grad = clipped(m.grad) * (1 - config_.momentum);
    m.exp_avg.mul_(keep).add_(grad);
    return at::add(grad, m.exp_avg, config_.momentum).to(type_);
  }

  // Changes this rank's elements of a matrix. x: the whole matrix before its orthogonalization.
  template <class Number>
  void change(const Matrix& m, const at::Tensor& x, const Number& lr) const {
    const at::Tensor change = orthogonal(x.view({m.rows, m.columns}))
                                  .flatten()
                                  .narrow(0, m.begin, m.param.numel())
                                  .to(master_type());
    if (m.weight_decay != 0) m.param.mul_(1 - lr * m.weight_decay);
    m.param.sub_(change * (lr * m.scale()));
  }

  // Advances the moments of a unit and starts to gather its matrices.
  template <class Number, class Clipped>
  void start(Gathering& g, const MatrixUnit& unit, const Number& keep, const Clipped& clipped) {
    g.shard = at::zeros({unit.shard_numel}, fp32_lr_.options().dtype(type_));
    g.whole = at::empty({unit.numel}, g.shard.options());
    for (const Matrix& m : unit.matrices)
      g.shard.narrow(0, m.in_shard, m.param.numel()).copy_(advance(m, keep, clipped));
    g.work = unshard_.all_gather(g.whole, g.shard);
  }

  template <class Number, class Clipped>
  void update_matrices(const Number& lr, const Number& keep, const Clipped& clipped) {
    if (unshard_.size() == 1) {
      for (const MatrixUnit& unit : units_)
        for (const Matrix& m : unit.matrices) change(m, advance(m, keep, clipped), lr);
      return;
    }
    for (size_t u = 0; u < units_.size(); ++u) {
      Gathering &now = gatherings_[u % 2], &next = gatherings_[(u + 1) % 2];
      if (u == 0) start(now, units_[0], keep, clipped);
      if (u + 1 < units_.size()) start(next, units_[u + 1], keep, clipped);
      now.work.wait();
      for (const Matrix& m : units_[u].matrices)
        change(m, now.whole.narrow(0, m.in_unit, m.rows * m.columns), lr);
      now = {};
    }
  }

  const YokeOptimizer config_;
  const Comm& unshard_;
  const at::ScalarType type_;  // type of the matrices that are gathered and orthogonalized
  std::vector<MatrixUnit> units_;
  std::array<Gathering, 2> gatherings_;  // those of the unit at work and of the next one
  std::unique_ptr<Optimizer> rest_;      // updates all other parameters
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const YokeOptimizer& config,
                                     const ShardState& state,
                                     const ModelSpec& model,
                                     const Comm& unshard) {
  return std::make_unique<Muon>(config, state, model, unshard);
}

}  // namespace yoke::ptd
