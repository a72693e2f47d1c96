// The gradients of a step are not stored anywhere, but the optimizer's first moment is, and it is a
// known function of them: m' = beta m + (1 - beta) g. So the moments after two consecutive steps
// give the gradient between them, for any backend and without a change of the training loop. The
// subtraction loses some digits, so the gradients of later steps are less exact than those of step
// 1.
//
// States are read through CheckpointReader and widened to fp64. Only the tensors of one
// parameter are in memory at a time.

#include "core/compare/states.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/checkpoint/checkpoint.hpp"
#include "yoke/backend.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

std::string folder(const RunFacts& run, int64_t step) {
  return run.dir + string_printf("/checkpoints/step-%08lld", static_cast<long long>(step));
}

using Values = std::vector<double>;

// State is a saved state that is open for reading.
class State {
 public:
  State(const RunFacts& run, int64_t step)
      : reader_(folder(run, step)), shapes_(reader_.param_shapes()) {}

  // Returns a tensor in fp64; widening is exact for every dtype in which a tensor may be saved.
  Values read(const std::string& name, const char* kind) const {
    const std::vector<int64_t>& shape = shapes_.at(name);
    Values values(numel(shape.data(), static_cast<int32_t>(shape.size())));
    const FlatView flat(values.data(), static_cast<int64_t>(values.size()), YOKE_F64);
    YokePiece piece{};
    piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    piece.name = view(name);
    piece.kind = view(std::string_view(kind));
    piece.shape = shape.data();
    piece.ndim = static_cast<int32_t>(shape.size());
    piece.dtype = YOKE_F64;
    piece.count = piece.run = static_cast<int64_t>(values.size());
    piece.view = flat.get();
    reader_.visit(piece);
    return values;
  }

 private:
  CheckpointReader reader_;
  Shapes shapes_;
};

// All sums are taken in one pass, in fp64. k is the factor of the least-squares fit of b by k a.
Difference difference(const std::string& name,
                      const Values& a,
                      const Values& b,
                      const Tolerance& tolerance) {
  Difference d;
  d.tensor = name;
  double aa = 0, bb = 0, ab = 0, delta = 0;
  int64_t nonzero = 0, close = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double gap = std::abs(b[i] - a[i]);
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
    delta += gap * gap;
    d.largest = std::max(d.largest, gap);
    d.outside += !(gap <= tolerance.atol + tolerance.rtol * std::abs(a[i]));
    if (a[i] == 0 && b[i] == 0) continue;
    ++nonzero;
    close += gap <= 0x1p-7 * std::abs(a[i]);
  }
  const auto ratio = [](double x, double y) {
    return y > 0 ? std::sqrt(x / y) : x > 0 ? INFINITY : 0;
  };
  d.norm_a = std::sqrt(aa);
  d.norm_b = std::sqrt(bb);
  d.relative = ratio(delta, aa);
  d.factor = aa > 0 ? ab / aa : 1;
  d.residual = ratio(std::max(0.0, bb - 2 * d.factor * ab + d.factor * d.factor * aa), bb);
  if (nonzero > 0) d.rounded = static_cast<double>(close) / static_cast<double>(nonzero);
  d.elements = static_cast<int64_t>(a.size());
  return d;
}

// Gradients computes the gradients of a step of one run from the first moments after the step and
// after the previous one. For SGD, the rate is 0: after the first step, its momentum is the
// gradient.
class Gradients {
 public:
  Gradients(const RunFacts& run, int64_t step)
      : kind_(run.exp_avg_decay ? "exp_avg" : "momentum"),
        rate_(run.exp_avg_decay.value_or(0)),
        other_rates_(run.other_decays),
        after_(run, step) {
    if (step > 1 && rate_ > 0) before_.emplace(run, step - 1);
  }
  // Returns g from m' = beta m + (1 - beta) g; nothing if the parameter has no moment because it is
  // frozen or because SGD runs without momentum.
  std::optional<Values> of(const std::string& name) const {
    try {
      Values g = after_.read(name, kind_);
      const auto other = other_rates_.find(name);
      const double beta = other == other_rates_.end() ? rate_ : other->second;
      if (beta == 0) return g;
      const Values m = before_ ? before_->read(name, kind_) : Values(g.size(), 0.0);
      for (size_t i = 0; i < g.size(); ++i) g[i] = (g[i] - beta * m[i]) / (1 - beta);
      return g;
    } catch (const Error& e) {
      if (e.code() == YOKE_NOT_FOUND) return std::nullopt;
      throw;
    }
  }

 private:
  const char* kind_;
  double rate_;  // decay rate of the moment, 0 for SGD
  const std::map<std::string, double>& other_rates_;
  State after_;
  std::optional<State> before_;
};

double together(const std::vector<Difference>& all, double Difference::*norm) {
  double squares = 0;
  for (const Difference& d : all) squares += d.*norm * d.*norm;
  return std::sqrt(squares);
}

}  // namespace

bool has_state(const RunFacts& run, int64_t step) {
  struct stat info {};
  return !run.external() && ::stat(folder(run, step).c_str(), &info) == 0;
}

std::vector<Difference> compare_params(const RunFacts& a,
                                       const RunFacts& b,
                                       int64_t step,
                                       const Tolerance& tolerance) {
  const State of_a(a, step), of_b(b, step);
  std::vector<Difference> all;
  for (const std::string& name : a.params)
    all.push_back(difference(name, of_a.read(name, "param"), of_b.read(name, "param"), tolerance));
  return all;
}

std::vector<Difference> compare_gradients(const RunFacts& a, const RunFacts& b, int64_t step) {
  // The moment of SGD with momentum is the gradient itself at the first step only.
  if (!a.exp_avg_decay && step > 1) return {};
  std::vector<Difference> all;
  try {
    const Gradients of_a(a, step), of_b(b, step);
    for (const std::string& name : a.params) {
      const std::optional<Values> x = of_a.of(name), y = of_b.of(name);
      if (x && y) all.push_back(difference(name, *x, *y, {}));
    }
  } catch (const Error& e) {
    if (e.code() != YOKE_NOT_FOUND) throw;  // NOT_FOUND: a state was not saved
  }
  return all;
}

std::vector<Difference> compare_updates(const RunFacts& a, const RunFacts& b, int64_t step) {
  for (const RunFacts* run : {&a, &b})
    if (!has_state(*run, step - 1) || !has_state(*run, step)) return {};
  const State a_before(a, step - 1), a_after(a, step), b_before(b, step - 1), b_after(b, step);
  const auto update = [](const State& before, const State& after, const std::string& name) {
    Values change = after.read(name, "param");
    const Values from = before.read(name, "param");
    for (size_t i = 0; i < change.size(); ++i) change[i] -= from[i];
    return change;
  };
  std::vector<Difference> all;
  for (const std::string& name : a.params) {
    all.push_back(
        difference(name, update(a_before, a_after, name), update(b_before, b_after, name), {}));
  }
  return all;
}

double norm_of_a(const std::vector<Difference>& all) {
  return together(all, &Difference::norm_a);
}
double norm_of_b(const std::vector<Difference>& all) {
  return together(all, &Difference::norm_b);
}

}  // namespace yoke::compare
