// Runs a YokeModel like a backend without LibTorch. It owns the memory of every parameter, runs the
// blocks in order and adds up the gradients of each parameter. T is the compute type.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke {

template <class T>
constexpr int32_t kDtype = sizeof(T) == 8   ? YOKE_F64
                           : sizeof(T) == 4 ? YOKE_F32
                                            : YOKE_BF16;

// Random tokens, targets and positions of one micro-batch, [B, S] each.
class TestBatch {
 public:
  TestBatch(int64_t sequences, int64_t seq_len, int64_t vocab, uint64_t seed)
      : shape_{sequences, seq_len} {
    for (int64_t i = 0; i < sequences * seq_len; ++i) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      tokens.push_back(static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(vocab)));
      targets.push_back(static_cast<int64_t>((seed >> 40) % static_cast<uint64_t>(vocab)));
      positions.push_back(i % seq_len);
    }
  }
  TestBatch(const TestBatch&) = delete;
  const YokeMicroBatch* micro() {
    inputs_ = {input("tokens", tokens), input("targets", targets), input("positions", positions)};
    if (!document_starts.empty()) inputs_.push_back(input("document_starts", document_starts));
    micro_ = micro_batch(inputs_.data(), inputs_.size());
    return &micro_;
  }
  int64_t sequences() const { return shape_[0]; }
  int64_t seq_len() const { return shape_[1]; }

  std::vector<int64_t> tokens, targets, positions;
  std::vector<int64_t> document_starts;  // empty = the batch lacks this input

 private:
  YokeInput input(const char* role, std::vector<int64_t>& values) {
    YokeInput in{};
    in.role = view(role);
    in.tensor.data = values.data();
    in.tensor.device = {YOKE_DEVICE_CPU, 0};
    in.tensor.ndim = 2;
    in.tensor.dtype = data_type(YOKE_I64);
    in.tensor.shape = shape_;
    return in;
  }

  int64_t shape_[2];
  std::vector<YokeInput> inputs_;
  YokeMicroBatch micro_{};
};

template <class T>
class NeutralDriver {
 public:
  explicit NeutralDriver(const YokeModel& model)
      : model_(model), memory_(params()), grads(params()), arrivals(params()) {
    for (size_t i = 0; i < params(); ++i) {
      std::vector<float> start(numel_of(i));
      YokeError err = make_error();
      check(model_.init_param(model_.ctx,
                              static_cast<int64_t>(i),
                              0,
                              static_cast<int64_t>(start.size()),
                              start.data(),
                              &err),
            err);
      memory_[i].assign(start.begin(), start.end());
      grads[i].assign(start.size(), 0);
    }
  }

  size_t params() const { return model_.summary->num_params; }
  size_t blocks() const { return model_.summary->num_blocks; }
  std::string name(size_t i) const { return std::string(view(model_.summary->params[i]->name)); }
  size_t numel_of(size_t i) const {
    return static_cast<size_t>(
        yoke::numel(model_.summary->params[i]->shape, model_.summary->params[i]->ndim));
  }
  std::vector<T>& memory(size_t i) { return memory_[i]; }

  // Returns a view of any memory, with the shape of parameter i.
  YokeTensor view_of(size_t i, void* data) const {
    YokeTensor t{};
    t.data = data;
    t.device = {YOKE_DEVICE_CPU, 0};
    t.ndim = model_.summary->params[i]->ndim;
    t.dtype = data_type(kDtype<T>);
    t.shape = const_cast<int64_t*>(model_.summary->params[i]->shape);
    return t;
  }
  void bind(size_t i, void* data) {
    const YokeTensor t = view_of(i, data);
    YokeError err = make_error();
    check(model_.bind_param(
              model_.ctx, static_cast<int64_t>(i), data == nullptr ? nullptr : &t, &err),
          err);
  }
  void bind_all() {
    for (size_t i = 0; i < params(); ++i) bind(i, memory_[i].data());
  }
  void unbind_all() {
    for (size_t i = 0; i < params(); ++i) bind(i, nullptr);
  }

  YokeForwardResult forward(uint64_t block,
                            const YokeMicroBatch* micro,
                            const YokeTensor* carry,
                            bool save) {
    YokeForwardArgs args{};
    args.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS);
    args.block = block;
    args.micro = micro;
    args.carry_in = carry;
    args.save = save;
    YokeForwardResult out{};
    out.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT);
    YokeError err = make_error();
    check(model_.block_forward(model_.ctx, &args, &out, &err), err);
    return out;
  }

  YokeBackwardArgs backward_args(uint64_t block,
                                 void* saved,
                                 const YokeTensor* grad_out,
                                 double loss_grad) {
    YokeBackwardArgs args{};
    args.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS);
    args.block = block;
    args.saved = saved;
    args.grad_out = grad_out;
    args.loss_grad = loss_grad;
    args.on_grad_ready = &NeutralDriver::on_grad;
    args.on_grad_ctx = this;
    return args;
  }
  ManagedTensor backward(const YokeBackwardArgs& args) {
    YokeManagedTensor* grad_in = nullptr;
    YokeError err = make_error();
    check(model_.block_backward(model_.ctx, &args, &grad_in, &err), err);
    return ManagedTensor(grad_in);
  }

  // Runs the forward of all blocks, calls `between`, and runs the backward of all blocks. Returns
  // the loss, summed over the targets.
  double step(const YokeMicroBatch* micro,
              double loss_grad,
              const std::function<void()>& between = {}) {
    std::vector<ManagedTensor> carries(blocks());
    std::vector<void*> saved(blocks());
    double loss = 0;
    for (size_t b = 0; b < blocks(); ++b) {
      YokeForwardResult r = forward(b, micro, b > 0 ? &carries[b - 1]->tensor : nullptr, true);
      carries[b].reset(r.carry_out);
      saved[b] = r.saved;
      loss = r.loss_sum;
    }
    if (between) between();
    ManagedTensor grad;
    for (size_t b = blocks(); b-- > 0;) {
      grad = backward(backward_args(b, saved[b], grad ? &grad->tensor : nullptr, loss_grad));
    }
    return loss;
  }

  static int32_t on_grad(void* ctx, int64_t param, const YokeTensor* grad, YokeError*) {
    auto& self = *static_cast<NeutralDriver*>(ctx);
    const size_t i = static_cast<size_t>(param);
    for (size_t e = 0; e < self.grads[i].size(); ++e) self.grads[i][e] += data<T>(*grad)[e];
    ++self.arrivals[i];
    return YOKE_OK;
  }

 private:
  const YokeModel& model_;
  std::vector<std::vector<T>> memory_;

 public:
  std::vector<std::vector<T>> grads;  // sums of all gradients so far
  std::vector<int> arrivals;          // calls of on_grad_ready, by parameter
};

}  // namespace yoke
