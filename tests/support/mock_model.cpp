#include "tests/support/mock_model.hpp"

#include <cmath>
#include <cstring>
#include <map>

#include "tests/support/mock_element.hpp"
#include "tests/support/mock_math.hpp"
#include "yoke/error.hpp"

namespace yoke::testing {
namespace {

using namespace mock;
static_assert(kV == MockModel::kVocab && kD == MockModel::kDim && kH == MockModel::kHidden);
enum Param { kEmbed, kUp, kBias, kScale, kDown, kGain, kOut };
enum Block { kEmbedBlock, kMlpBlock, kHeadBlock, kNumBlocks };

// ---- Conversion between doubles, which are used internally, and the model's dtype ----

Vec read(const YokeTensor& t) {
  Vec v(numel(t));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = get_element(data<char>(t), YOKE_DTYPE_OF(t.dtype), i);
  return v;
}

std::vector<char> bytes_of(const Vec& v, int32_t dtype) {
  std::vector<char> bytes(v.size() * item_size(dtype));
  for (size_t i = 0; i < v.size(); ++i) put_element(bytes.data(), dtype, i, v[i]);
  return bytes;
}

// Returns whether the elements lie in row-major order without gaps. A backend may give strides.
bool is_compact(const YokeTensor& t) {
  int64_t stride = 1;
  for (int32_t d = t.ndim; t.strides != nullptr && d-- > 0; stride *= t.shape[d]) {
    if (t.strides[d] != stride && t.shape[d] != 1) return false;
  }
  return true;
}

Ids ids(const YokeMicroBatch& micro, std::string_view role) {
  for (uint64_t i = 0; i < micro.num_inputs; ++i) {
    const YokeTensor& t = micro.inputs[i].tensor;
    if (view(micro.inputs[i].role) == role) return {data<int64_t>(t), data<int64_t>(t) + numel(t)};
  }
  throw Error(YOKE_INVALID_ARGUMENT, "the micro-batch has no " + std::string(role));
}

struct Managed {
  YokeManagedTensor managed{};
  std::vector<char> bytes;
  int64_t shape[2];
  MockModelLog* log;
};

YokeManagedTensor* make_managed(const Vec& v, int32_t dtype, MockModelLog& log) {
  auto* m = new Managed;
  m->bytes = bytes_of(v, dtype);
  m->shape[0] = static_cast<int64_t>(v.size()) / kD;
  m->shape[1] = kD;
  m->log = &log;
  ++log.live_tensors;
  m->managed.dlpack_major = 1;
  m->managed.manager_ctx = m;
  m->managed.deleter = [](YokeManagedTensor* self) {
    auto* owner = static_cast<Managed*>(self->manager_ctx);
    --owner->log->live_tensors;
    delete owner;
  };
  YokeTensor& t = m->managed.tensor;
  t.data = m->bytes.data();
  t.device = {YOKE_DEVICE_CPU, 0};
  t.ndim = 2;
  t.dtype = data_type(dtype);
  t.shape = m->shape;
  return &m->managed;
}

// The state that forward keeps for backward.
struct Saved {
  uint64_t block;
  Ids tokens, targets;
  Vec carry;                   // value of carry_in in forward
  const YokeTensor* carry_in;  // must still have that value in backward
};

}  // namespace

struct MockModel::Impl {
  explicit Impl(const MockModelOptions& o) : options(o) {
    add_param("embed.weight", {kV, kD}, true, true);
    add_param("mlp.up.weight", {kH, kD}, true, true);
    add_param("mlp.up.bias", {kH}, true, false);
    add_param("mlp.scale", {kD}, false, false);
    add_param("mlp.down.weight", {kD, kH}, true, true);
    add_param("head.gain", {}, true, false);
    if (!o.tied) add_param("head.weight", {kV, kD}, true, true);
    add_block("embed", {kEmbed});
    add_block("mlp", {kUp, kBias, kScale, kDown});
    add_block("head", {out(), kGain});
    finish();
  }

  int64_t out() const { return options.tied ? kEmbed : kOut; }

  void add_param(const char* name, std::vector<int64_t> shape, bool trainable, bool decay) {
    auto p = std::make_unique<YokeParameter>();
    shapes.push_back(std::make_unique<std::vector<int64_t>>(std::move(shape)));
    *p = {YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER),
          view(std::string_view(name)),
          shapes.back()->data(),
          static_cast<int32_t>(shapes.back()->size()),
          options.dtype,
          trainable,
          decay,
          0,
          0,
          0};
    params.push_back(std::move(p));
    param_ptrs.push_back(params.back().get());
  }

  void add_block(const char* name, std::vector<int64_t> indices) {
    block_params.push_back(std::make_unique<std::vector<int64_t>>(std::move(indices)));
    auto b = std::make_unique<YokeBlock>();
    *b = {YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK),
          view(std::string_view(name)),
          block_params.back()->data(),
          block_params.back()->size(),
          -1,
          -1,
          -1,
          nullptr,
          0};
    blocks.push_back(std::move(b));
    block_ptrs.push_back(blocks.back().get());
  }

  void finish() {
    bound.resize(params.size());
    summary = {YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY),
               param_ptrs.data(),
               param_ptrs.size(),
               block_ptrs.data(),
               block_ptrs.size(),
               0,
               {}};
    model.header = YOKE_HEADER(YokeModel, YOKE_ID_MODEL);
    model.summary = &summary;
    model.ctx = this;
    model.init_param =
        [](void* ctx, int64_t i, int64_t begin, int64_t n, float* dst, YokeError* err) {
          return guard(err, [&] { self(ctx).init_param(i, begin, n, dst); });
        };
    model.bind_param = [](void* ctx, int64_t i, const YokeTensor* t, YokeError* err) {
      return guard(err, [&] { self(ctx).bind_param(i, t); });
    };
    model.block_forward =
        [](void* ctx, const YokeForwardArgs* a, YokeForwardResult* r, YokeError* err) {
          return guard(err, [&] { self(ctx).forward(*a, *r); });
        };
    model.block_backward =
        [](void* ctx, const YokeBackwardArgs* a, YokeManagedTensor** grad_in, YokeError* err) {
          return guard(err, [&] { *grad_in = self(ctx).backward(*a); });
        };
    model.drop_saved = [](void* ctx, void* saved) {
      self(ctx).log.calls.push_back("drop");
      self(ctx).free_saved(saved);
    };
  }

  static Impl& self(void* ctx) { return *static_cast<Impl*>(ctx); }

  void note(const std::string& call) {
    log.calls.push_back(call);
    for (auto& [word, left] : failures) {
      if (call.compare(0, word.size(), word) == 0 && left-- == 0)
        throw Error(YOKE_INTERNAL, "mock failure: " + word);
    }
  }

  void init_param(int64_t i, int64_t begin, int64_t n, float* dst) {
    note("init " + std::to_string(i));
    for (int64_t k = 0; k < n; ++k) dst[k] = initial(i, begin + k);
  }

  void bind_param(int64_t i, const YokeTensor* t) {
    if (t == nullptr) {
      log.calls.push_back("unbind " + std::to_string(i));
      bound.at(i) = {};
      return;
    }
    note("bind " + std::to_string(i));
    const YokeParameter& p = *params.at(i);
    bool same = YOKE_DTYPE_OF(t->dtype) == p.dtype && t->ndim == p.ndim && is_compact(*t);
    for (int32_t d = 0; same && d < p.ndim; ++d) same = t->shape[d] == p.shape[d];
    if (!same) throw Error(YOKE_INVALID_ARGUMENT, "bind_param: a view of another shape or dtype");
    bound[i] = *t;
    bound[i].shape = const_cast<int64_t*>(p.shape);
  }

  Vec value(int64_t i) const {
    if (bound[i].data == nullptr) {
      throw Error(YOKE_FAILED_PRECONDITION, std::string(params[i]->name.data) + " is not bound");
    }
    return read(bound[i]);
  }

  void forward(const YokeForwardArgs& a, YokeForwardResult& r) {
    note("forward " + std::string(block_ptrs.at(a.block)->name.data));
    auto s = std::make_unique<Saved>();
    s->block = a.block;
    s->tokens = ids(*a.micro, "tokens");
    s->targets = ids(*a.micro, "targets");
    s->carry_in = a.carry_in;
    if (a.carry_in != nullptr) s->carry = read(*a.carry_in);
    run_forward(*s, r);
    if (a.save == 0) return;
    ++log.live_saved;
    r.saved = s.release();
  }

  void run_forward(const Saved& s, YokeForwardResult& r) {
    if (s.block == kEmbedBlock) {
      r.carry_out = make_managed(embed_forward(s.tokens, value(kEmbed)), options.dtype, log);
    } else if (s.block == kMlpBlock) {
      const Vec up = value(kUp), bias = value(kBias), scale = value(kScale), down = value(kDown);
      r.carry_out = make_managed(Mlp{up, bias, scale, down}.forward(s.carry), options.dtype, log);
    } else {
      const Vec out_value = value(out()), gain = value(kGain);
      Head{out_value, gain}.forward(s.carry, s.targets, &r.loss_sum, &r.loss_weight);
    }
  }

  void free_saved(void* saved) {
    --log.live_saved;
    delete static_cast<Saved*>(saved);
  }

  YokeManagedTensor* backward(const YokeBackwardArgs& a) {
    const std::unique_ptr<Saved> s(static_cast<Saved*>(a.saved));
    --log.live_saved;
    note("backward " + std::string(block_ptrs.at(a.block)->name.data));
    if (s->block != a.block) throw Error(YOKE_INVALID_ARGUMENT, "saved belongs to another block");
    if (s->carry_in != nullptr && read(*s->carry_in) != s->carry) {
      throw Error(YOKE_INVALID_ARGUMENT, "carry_in changed between forward and backward");
    }
    const Vec grad = a.grad_out != nullptr ? read(*a.grad_out) : Vec();
    if (s->block == kEmbedBlock) {
      Vec d_embed(kV * kD);
      embed_backward(s->tokens, grad, d_embed);
      report(a, kEmbed, d_embed);
      return nullptr;
    }
    return make_managed(s->block == kMlpBlock ? mlp_backward(a, *s, grad) : head_backward(a, *s),
                        options.dtype,
                        log);
  }

  Vec mlp_backward(const YokeBackwardArgs& a, const Saved& s, const Vec& grad) {
    const Vec up = value(kUp), bias = value(kBias), scale = value(kScale), down = value(kDown);
    Vec d_up(kH * kD), d_bias(kH), d_down(kD * kH);
    Vec d_x = Mlp{up, bias, scale, down}.backward(s.carry, grad, d_up, d_bias, d_down);
    report(a, kDown, d_down);
    report(a, kBias, d_bias);
    report(a, kUp, d_up);
    return d_x;
  }

  Vec head_backward(const YokeBackwardArgs& a, const Saved& s) {
    const Vec out_value = value(out()), gain = value(kGain);
    Vec d_out(kV * kD), d_gain(1);
    Vec d_x = Head{out_value, gain}.backward(s.carry, s.targets, a.loss_grad, d_out, d_gain);
    report(a, out(), d_out);
    report(a, kGain, d_gain);
    return d_x;
  }

  void report(const YokeBackwardArgs& a, int64_t i, const Vec& grad) {
    std::vector<char> bytes = bytes_of(grad, options.dtype);
    YokeTensor t{};
    t.data = bytes.data();
    t.device = {YOKE_DEVICE_CPU, 0};
    t.ndim = params[i]->ndim;
    t.dtype = data_type(options.dtype);
    t.shape = const_cast<int64_t*>(params[i]->shape);
    YokeError err = make_error();
    check(a.on_grad_ready(a.on_grad_ctx, wrong_parameter ? 1000 : i, &t, &err), err);
  }

  MockModelOptions options;
  MockModelLog log;
  std::map<std::string, int> failures;  // calls left before the failure, by the start of the call
  bool wrong_parameter = false;
  std::vector<std::unique_ptr<std::vector<int64_t>>> shapes, block_params;
  std::vector<std::unique_ptr<YokeParameter>> params;
  std::vector<std::unique_ptr<YokeBlock>> blocks;
  std::vector<const YokeParameter*> param_ptrs;
  std::vector<const YokeBlock*> block_ptrs;
  std::vector<YokeTensor> bound;
  YokeModelSummary summary{};
  YokeModel model{};
};

MockModel::MockModel(const MockModelOptions& options) : impl_(std::make_unique<Impl>(options)) {}
MockModel::~MockModel() = default;
const YokeModel& MockModel::model() const {
  return impl_->model;
}
const YokeModelSummary& MockModel::summary() const {
  return impl_->summary;
}
MockModelLog& MockModel::log() {
  return impl_->log;
}
void MockModel::fail_at(const std::string& call, int n) {
  impl_->failures[call] = n;
}
void MockModel::report_wrong_parameter(bool on) {
  impl_->wrong_parameter = on;
}

float MockModel::initial(int64_t param, int64_t i) {
  if (param == kScale || param == kGain) return 1.0f + 0.125f * static_cast<float>(i);
  return static_cast<float>(
      0.4 * std::sin(1.7 * static_cast<double>(i) + 3.1 * static_cast<double>(param) + 0.5));
}

MockModel::Values MockModel::initial_values() const {
  Values v;
  for (size_t p = 0; p < impl_->params.size(); ++p) {
    v.params.emplace_back(numel(impl_->params[p]->shape, impl_->params[p]->ndim));
    for (size_t i = 0; i < v.params[p].size(); ++i) v.params[p][i] = initial(p, i);
    v.grads.emplace_back(v.params[p].size());
  }
  return v;
}

void MockModel::add_micro_batch(const YokeMicroBatch& micro, double loss_grad, Values& v) const {
  const auto tokens = ids(micro, "tokens"), targets = ids(micro, "targets");
  const int64_t out = impl_->out();
  const Mlp mlp{v.params[kUp], v.params[kBias], v.params[kScale], v.params[kDown]};
  const Head head{v.params[out], v.params[kGain]};
  const Vec x = embed_forward(tokens, v.params[kEmbed]);
  const Vec y = mlp.forward(x);
  head.forward(y, targets, &v.loss_sum, &v.loss_weight);
  const Vec d_y = head.backward(y, targets, loss_grad, v.grads[out], v.grads[kGain]);
  const Vec d_x = mlp.backward(x, d_y, v.grads[kUp], v.grads[kBias], v.grads[kDown]);
  embed_backward(tokens, d_x, v.grads[kEmbed]);
}

}  // namespace yoke::testing
