// A step of the reference has three parts: forward and backward of every micro-batch through all
// blocks, the norm of all gradients, and the update of each parameter. It can make one mistake on
// purpose; for most of them the batch is divided into data ranks, as the backend divides it.
//
// The reference must be obviously correct, so it is slow on purpose. Every value is a double in a
// plain vector, and nothing is sharded. It uses none of the sdk's functions for clipping and
// updates: backends use them too, so a fault in them would cancel out in a comparison.
#include "sdk/conformance/reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "yoke/tensor.hpp"

namespace yoke::conformance {
namespace {

struct Parameter {
  const YokeParameter* what;
  std::vector<std::string> moments;              // kinds of the moments that it has
  bool hidden;                                   // whether it is a hidden matrix for Muon
  std::vector<double> value, grad, total, m, v;  // m, v: the first and the second moment
};

// A matrix as a list of rows.
using Matrix = std::vector<std::vector<double>>;

Matrix transpose(const Matrix& a) {
  Matrix t(a[0].size(), std::vector<double>(a.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  return t;
}

// Returns x * a + y * b * c.
Matrix multiply_add(double x, const Matrix& a, double y, const Matrix& b, const Matrix& c) {
  Matrix sum = a;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) {
      double product = 0;
      for (size_t k = 0; k < c.size(); ++k) product += b[i][k] * c[k][j];
      sum[i][j] = x * a[i][j] + y * product;
    }
  }
  return sum;
}

// Returns what the contract calls orthogonal(x).
Matrix orthogonal(Matrix x) {
  if (x.size() > x[0].size()) return transpose(orthogonal(transpose(x)));
  double squares = 0;
  for (const std::vector<double>& row : x)
    for (const double e : row) squares += e * e;
  for (std::vector<double>& row : x)
    for (double& e : row) e /= std::max(std::sqrt(squares), 1e-7);
  const Matrix zero(x.size(), std::vector<double>(x.size(), 0));
  for (int n = 0; n < 5; ++n) {
    const Matrix s = multiply_add(0, zero, 1, x, transpose(x));
    x = multiply_add(3.4445, x, 1, multiply_add(-4.7750, s, 2.0315, s, s), x);
  }
  return x;
}

class Reference {
 public:
  Reference(const YokeModel& model, const RunSpec& spec, Mistake mistake)
      : model_(model), spec_(spec), mistake_(mistake) {
    const YokeModelSummary& s = *model.summary;
    for (uint64_t i = 0; i < s.num_params; ++i) {
      const bool hidden = spec.kind == YOKE_MUON && is_hidden_matrix(s, i);
      Parameter p{s.params[i], spec.moments_of(s, i), hidden, {}, {}, {}, {}, {}};
      const int64_t n = numel(p.what->shape, p.what->ndim);
      std::vector<float> initial(n);
      ok(model.init_param(model.ctx, static_cast<int64_t>(i), 0, n, initial.data(), &err_));
      p.value.assign(initial.begin(), initial.end());
      for (auto* zeros : {&p.grad, &p.total, &p.m, &p.v}) zeros->resize(n);
      params_.push_back(std::move(p));
    }
    for (size_t i = 0; i < params_.size(); ++i) {
      YokeTensor t{};
      t.data = params_[i].value.data();
      t.device = {YOKE_DEVICE_CPU, 0};
      t.ndim = params_[i].what->ndim;
      t.dtype = data_type(YOKE_F64);
      t.shape = const_cast<int64_t*>(params_[i].what->shape);
      ok(model.bind_param(model.ctx, static_cast<int64_t>(i), &t, &err_));
    }
  }

  // Makes one step. `ranks` are the batches of the data ranks; without a mistake, one rank has the
  // whole batch.
  void step(const std::vector<std::unique_ptr<Batch>>& ranks, int64_t t, double lr, Trace& trace) {
    if (mistake_ != Mistake::kKeepsGradient)
      for (Parameter& p : params_) p.total.assign(p.total.size(), 0);
    double loss = 0, weight = 0, norm_of_first = 0;
    for (const auto& rank : ranks) {
      add_gradient(rank->batch(), static_cast<double>(ranks.size()), loss, weight);
      if (mistake_ == Mistake::kNoReduction) break;
      if (rank == ranks.front()) norm_of_first = norm(&Parameter::total);
    }
    const double whole = norm(&Parameter::total);
    const double clipped = mistake_ == Mistake::kNormBeforeSum ? norm_of_first : whole;
    const bool clips = mistake_ != Mistake::kNoClip && mistake_ != Mistake::kClipBeforeSum &&
                       mistake_ != Mistake::kClipShare;
    const double scale = clips ? clip_scale(spec_.clip, clipped) : 1;
    if (std::isfinite(whole)) {
      for (Parameter& p : params_)
        if (p.what->trainable) update(p, scale, t, lr);
      step_ = t;
    }
    trace.loss.push_back(loss / ranks.front()->batch().token_weight);
    trace.weight.push_back(weight);
    trace.norm.push_back(clipped);
  }

  // Computes the gradient of a batch, without an update.
  State gradient(const YokeBatch& batch) {
    double loss = 0, weight = 0;
    add_gradient(batch, 1, loss, weight);
    State s;
    for (const Parameter& p : params_)
      if (p.what->trainable) put(s, p, "grad", p.total);
    return s;
  }

  State state() const {
    State s;
    for (const Parameter& p : params_) {
      put(s, p, "param", p.value);
      for (size_t i = 0; i < p.moments.size(); ++i) put(s, p, p.moments[i], i == 0 ? p.m : p.v);
    }
    WholeTensor& step = s["optimizer/step"];
    step.dtype = YOKE_I64;
    step.bytes.resize(sizeof step_);
    std::memcpy(step.bytes.data(), &step_, sizeof step_);
    return s;
  }

  void load(const State& s) {
    for (Parameter& p : params_) {
      take(s, p, "param", p.value);
      for (size_t i = 0; i < p.moments.size(); ++i) take(s, p, p.moments[i], i == 0 ? p.m : p.v);
    }
  }

 private:
  void ok(int32_t code) const {
    if (code != YOKE_OK)
      throw Error(YOKE_INTERNAL, std::string("the reference of the checks failed: ") + err_.text);
  }

  static void put(State& s,
                  const Parameter& p,
                  const std::string& kind,
                  const std::vector<double>& data) {
    WholeTensor& t = s[std::string(view(p.what->name)) + "/" + kind];
    t.shape.assign(p.what->shape, p.what->shape + p.what->ndim);
    t.dtype = YOKE_F64;
    t.bytes.resize(data.size() * sizeof(double));
    std::memcpy(t.bytes.data(), data.data(), t.bytes.size());
  }

  static void take(const State& s,
                   const Parameter& p,
                   const std::string& kind,
                   std::vector<double>& to) {
    const auto found = s.find(std::string(view(p.what->name)) + "/" + kind);
    if (found == s.end()) return;
    for (size_t i = 0; i < to.size(); ++i) to[i] = found->second.at(static_cast<int64_t>(i));
  }

  double norm(std::vector<double> Parameter::*gradient) const {
    double squares = 0;
    for (const Parameter& p : params_)
      for (const double g : p.*gradient) squares += g * g;
    return std::sqrt(squares);
  }

  static double clip_scale(double clip, double norm) {
    return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1;
  }

  // Adds the gradient of one rank to the total.
  void add_gradient(const YokeBatch& batch, double ranks, double& loss, double& weight) {
    const auto micros = static_cast<double>(batch.num_micros);
    for (Parameter& p : params_) p.grad.assign(p.grad.size(), 0);
    for (uint64_t m = 0; m < batch.num_micros; ++m) {
      const double targets = mistake_ == Mistake::kMeanOfMeans
                                 ? batch.micros[m]->token_weight * micros * ranks
                                 : batch.token_weight;
      forward_backward(*batch.micros[m], 1 / targets, loss, weight);
    }
    double factor = 1;
    if (mistake_ == Mistake::kTimesRanks) factor = ranks;
    if (mistake_ == Mistake::kOverRanks) factor = 1 / ranks;
    if (mistake_ == Mistake::kTimesMicros) factor = micros;
    if (mistake_ == Mistake::kOverMicros) factor = 1 / micros;
    if (mistake_ == Mistake::kClipBeforeSum)
      factor = clip_scale(spec_.clip, norm(&Parameter::grad));
    if (mistake_ == Mistake::kClipShare)
      factor = clip_scale(spec_.clip / ranks, norm(&Parameter::grad));
    for (Parameter& p : params_)
      for (size_t k = 0; k < p.total.size(); ++k) p.total[k] += factor * p.grad[k];
  }

  void forward_backward(const YokeMicroBatch& micro,
                        double loss_grad,
                        double& loss,
                        double& weight) {
    const uint64_t blocks = model_.summary->num_blocks;
    std::vector<ManagedTensor> carries(blocks);
    std::vector<void*> saved(blocks);
    for (uint64_t b = 0; b < blocks; ++b) {
      YokeForwardArgs args{};
      args.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS);
      args.block = b;
      args.micro = &micro;
      if (b > 0) args.carry_in = &carries[b - 1]->tensor;
      args.save = 1;
      YokeForwardResult out{};
      out.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT);
      ok(model_.block_forward(model_.ctx, &args, &out, &err_));
      carries[b].reset(out.carry_out);
      saved[b] = out.saved;
      loss += out.loss_sum;
      weight += out.loss_weight;
    }
    ManagedTensor grad;
    for (uint64_t b = blocks; b-- > 0;) {
      YokeBackwardArgs args{};
      args.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS);
      args.block = b;
      args.saved = saved[b];
      args.grad_out = grad ? &grad->tensor : nullptr;
      args.loss_grad = loss_grad;
      args.on_grad_ctx = this;
      args.on_grad_ready = [](void* ctx, int64_t i, const YokeTensor* g, YokeError*) -> int32_t {
        std::vector<double>& sum = static_cast<Reference*>(ctx)->params_[i].grad;
        for (size_t k = 0; k < sum.size(); ++k) sum[k] += data<const double>(*g)[k];
        return YOKE_OK;
      };
      YokeManagedTensor* grad_in = nullptr;
      ok(model_.block_backward(model_.ctx, &args, &grad_in, &err_));
      grad.reset(grad_in);
    }
  }

  // ---- Update: the formulas that the contract gives at YokeOptimizer ----

  // Returns whether weight decay changes the gradient instead of the parameter.
  bool decays_gradient() const {
    const bool adam = spec_.kind == YOKE_ADAM || spec_.kind == YOKE_ADAM_UNCORRECTED;
    return adam != (mistake_ == Mistake::kOtherDecay);
  }

  void update(Parameter& p, double scale, int64_t t, double lr) const {
    const bool decays =
        (p.what->decay || mistake_ == Mistake::kDecaysAll) && mistake_ != Mistake::kNoDecay;
    if (mistake_ == Mistake::kPeakRate) lr = kPeakRate;
    if (p.hidden) return update_hidden(p, scale, decays, lr);
    for (size_t k = 0; k < p.value.size(); ++k) {
      double g = scale * p.total[k];
      const double decay = decays ? spec_.weight_decay * p.value[k] : 0;
      if (decays_gradient()) {
        g += decay;
      } else {
        p.value[k] -= lr * decay;
      }
      if (spec_.kind == YOKE_SGD) {
        p.m[k] = spec_.momentum * p.m[k] + g;
        p.value[k] -= lr * p.m[k];
      } else if (spec_.kind == YOKE_LION) {
        p.value[k] -= lr * lion(p, k, g);
      } else {
        p.value[k] -= lr * adam(p, k, g, t);
      }
    }
  }

  // Updates a hidden matrix by Muon.
  void update_hidden(Parameter& p, double scale, bool decays, double lr) const {
    const auto rows = static_cast<size_t>(p.what->shape[0]);
    const auto columns = static_cast<size_t>(p.what->shape[1]);
    const double mu = spec_.momentum;
    Matrix x(rows, std::vector<double>(columns));
    for (size_t k = 0; k < p.value.size(); ++k) {
      const double g = scale * p.total[k];
      p.m[k] = mu * p.m[k] + (1 - mu) * g;
      x[k / columns][k % columns] =
          mistake_ == Mistake::kLooksNotAhead ? p.m[k] : mu * p.m[k] + (1 - mu) * g;
    }
    x = orthogonal(x);
    // 0.2 * sqrt(25) = 1.
    const double width =
        mistake_ == Mistake::kUnscaled ? 25 : std::max(p.what->shape[0], p.what->shape[1]);
    for (size_t k = 0; k < p.value.size(); ++k) {
      if (decays) p.value[k] -= lr * spec_.weight_decay * p.value[k];
      p.value[k] -= lr * 0.2 * std::sqrt(width) * x[k / columns][k % columns];
    }
  }

  // Advances the moments of an element and returns its change at a learning rate of 1.
  double adam(Parameter& p, size_t k, double g, int64_t t) const {
    const bool corrected =
        spec_.kind == YOKE_ADAMW || spec_.kind == YOKE_ADAM || spec_.kind == YOKE_MUON;
    const bool corrects = corrected != (mistake_ == Mistake::kOtherCorrection);
    const double correct1 = corrects ? 1 - std::pow(kBeta1, static_cast<double>(t)) : 1;
    const double correct2 = corrects ? 1 - std::pow(kBeta2, static_cast<double>(t)) : 1;
    p.m[k] = kBeta1 * p.m[k] + (1 - kBeta1) * g;
    p.v[k] = kBeta2 * p.v[k] + (1 - kBeta2) * g * g;
    const double root = mistake_ == Mistake::kEpsInside
                            ? std::sqrt(p.v[k] / correct2 + kEps)
                            : std::sqrt(p.v[k]) / std::sqrt(correct2) + kEps;
    return p.m[k] / correct1 / root;
  }

  // Does the same for Lion.
  double lion(Parameter& p, size_t k, double g) const {
    const double before = kBeta1 * p.m[k] + (1 - kBeta1) * g;
    p.m[k] = kBeta2 * p.m[k] + (1 - kBeta2) * g;
    const double direction = mistake_ == Mistake::kNewMoment ? p.m[k] : before;
    return direction > 0 ? 1 : direction < 0 ? -1 : 0;
  }

  const YokeModel& model_;
  const RunSpec& spec_;
  const Mistake mistake_;
  YokeError err_ = make_error();
  std::vector<Parameter> params_;
  int64_t step_ = 0;
};

// Returns a model for the reference.
std::unique_ptr<TestModel> fp64_model(Subject& subject, ModelSpec spec) {
  spec.dtype = YOKE_F64;
  return subject.test_bed.make_model(spec, YokeString{"", 0});
}

// Returns the batches of the data ranks of a step.
std::vector<std::unique_ptr<Batch>> batches_of(const RunSpec& spec, Mistake mistake, int64_t step) {
  const int32_t ranks = mistake == Mistake::kNone ? 1
                                                  : std::max(1, spec.degrees[YOKE_DP_REPLICATE]) *
                                                        std::max(1, spec.degrees[YOKE_DP_SHARD]);
  const bool whole = mistake == Mistake::kNone || spec.micro_batch == 0;
  const int32_t micro = whole ? spec.global_batch / ranks : spec.micro_batch;
  std::vector<std::unique_ptr<Batch>> batches;
  for (int32_t r = 0; r < ranks; ++r)
    batches.push_back(
        std::make_unique<Batch>(Split{spec.global_batch, micro, r, ranks, spec.targets}, step));
  return batches;
}

}  // namespace

Trace reference_trace(Subject& subject, const RunSpec& spec, const ReferenceStart& start) {
  const auto model = fp64_model(subject, spec.model);
  Reference reference(model->model(), spec, start.mistake);
  if (start.state != nullptr) reference.load(*start.state);
  Trace trace;
  for (int64_t t = start.first_step; t < start.first_step + spec.steps; ++t)
    reference.step(batches_of(spec, start.mistake, t), t, spec.lr(t), trace);
  trace.state = reference.state();
  return trace;
}

State reference_gradient(Subject& subject, const ModelSpec& model_spec, const YokeBatch& batch) {
  const auto model = fp64_model(subject, model_spec);
  model->fault_injection().loss_factor_in_positions = true;
  const RunSpec spec;
  return Reference(model->model(), spec, Mistake::kNone).gradient(batch);
}

}  // namespace yoke::conformance
