// The wrapper replaces all callbacks. For `saved` and for managed tensors it gives the
// backend its own objects, each of which contains the real one. An object that the backend does not
// release therefore shows in a count, and a release of the real object always goes through the
// wrapper.
//
// A gradient that the backend borrows is a copy. It is overwritten, not freed, as soon as
// on_grad_ready has returned. A backend that reads it too late gets NaN on every run. Freed memory
// would often still hold the right values.
#include "sdk/conformance/instrumented_model.hpp"

#include <cstring>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {

// The `saved` that the backend gets. It contains the real one.
struct InstrumentedModel::Saved {
  void* real;
  uint64_t block;
};

// The managed tensor that the backend gets. Its deleter counts the call, and then deletes the real
// one.
struct InstrumentedModel::Carry {
  YokeManagedTensor ours;
  YokeManagedTensor* real;
  std::shared_ptr<std::atomic<int64_t>> live;
};

struct InstrumentedModel::Slots {
  static InstrumentedModel& self(void* ctx) { return *static_cast<InstrumentedModel*>(ctx); }

  static int32_t init_param(
      void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
    InstrumentedModel& model = self(ctx);
    if (const int32_t code = model.fails(kInit, err)) return code;
    return model.real_.init_param(model.real_.ctx, param, begin, count, dst, err);
  }

  static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* t, YokeError* err) {
    InstrumentedModel& model = self(ctx);
    if (t != nullptr) {
      if (const int32_t code = model.fails(kBind, err)) return code;
    }
    return model.real_.bind_param(model.real_.ctx, param, t, err);
  }

  static int32_t block_forward(void* ctx,
                               const YokeForwardArgs* args,
                               YokeForwardResult* out,
                               YokeError* err) {
    InstrumentedModel& model = self(ctx);
    if (const int32_t code = model.fails(kForward, err)) return code;
    const int32_t code = model.real_.block_forward(model.real_.ctx, args, out, err);
    if (code != YOKE_OK) return code;
    if (out->carry_out != nullptr) out->carry_out = model.track(out->carry_out);
    if (out->saved != nullptr) {
      out->saved = new Saved{out->saved, args->block};
      ++model.live_saved_;
    }
    return code;
  }

  static int32_t block_backward(void* ctx,
                                const YokeBackwardArgs* args,
                                YokeManagedTensor** grad_in,
                                YokeError* err) {
    InstrumentedModel& model = self(ctx);
    const std::unique_ptr<Saved> saved(static_cast<Saved*>(args->saved));
    if (saved == nullptr) {
      model.misuse_ =
          "block_backward was called with saved = NULL; it needs the `saved` of block_forward";
      return fill(err, YOKE_INVALID_ARGUMENT, model.misuse_);
    }
    --model.live_saved_;
    if (const int32_t code = model.fails(kBackward, err)) {
      model.real_.drop_saved(model.real_.ctx, saved->real);
      return code;
    }
    struct Receiver {
      InstrumentedModel& model;
      const YokeBackwardArgs& args;
    } receiver{model, *args};
    YokeBackwardArgs mine = *args;
    mine.saved = saved->real;
    mine.on_grad_ctx = &receiver;
    mine.on_grad_ready = [](void* r, int64_t param, const YokeTensor* grad, YokeError* e) {
      auto& to = *static_cast<Receiver*>(r);
      return to.model.use_offsets ? deliver_at_offset(to.args, param, *grad, e)
                                  : to.model.deliver(to.args, param, *grad, e);
    };
    const int32_t code = model.real_.block_backward(model.real_.ctx, &mine, grad_in, err);
    if (code == YOKE_OK && grad_in != nullptr && *grad_in != nullptr)
      *grad_in = model.track(*grad_in);
    return code;
  }

  // Passes the backend a copy of the gradient with a byte_offset and explicit strides.
  static int32_t deliver_at_offset(const YokeBackwardArgs& args,
                                   int64_t param,
                                   const YokeTensor& grad,
                                   YokeError* err) {
    constexpr size_t kOffset = 24;
    const size_t bytes = numel(grad) * item_size(YOKE_DTYPE_OF(grad.dtype));
    std::vector<char> copy(kOffset + bytes, static_cast<char>(0xff));
    std::memcpy(copy.data() + kOffset, data<const char>(grad), bytes);
    std::vector<int64_t> strides(grad.ndim, 1);
    for (int32_t d = grad.ndim - 1; d > 0; --d) strides[d - 1] = strides[d] * grad.shape[d];
    YokeTensor view = grad;
    view.data = copy.data();
    view.byte_offset = kOffset;
    view.strides = strides.data();
    return args.on_grad_ready(args.on_grad_ctx, param, &view, err);
  }

  static void drop_saved(void* ctx, void* saved) {
    InstrumentedModel& model = self(ctx);
    const std::unique_ptr<Saved> ours(static_cast<Saved*>(saved));
    if (ours == nullptr) return;
    --model.live_saved_;
    model.real_.drop_saved(model.real_.ctx, ours->real);
  }

  static void delete_carry(YokeManagedTensor* ours) {
    auto* carry = static_cast<Carry*>(ours->manager_ctx);
    --*carry->live;
    if (carry->real->deleter != nullptr) carry->real->deleter(carry->real);
    delete carry;
  }
};

InstrumentedModel::InstrumentedModel(const YokeModel& model)
    : real_(model), instrumented_(model), live_carries_(std::make_shared<std::atomic<int64_t>>(0)) {
  for (int64_t& left : fail_after) left = -1;
  instrumented_.ctx = this;
  instrumented_.init_param = Slots::init_param;
  instrumented_.bind_param = Slots::bind_param;
  instrumented_.block_forward = Slots::block_forward;
  instrumented_.block_backward = Slots::block_backward;
  instrumented_.drop_saved = Slots::drop_saved;
}

const char* InstrumentedModel::name(Callback callback) {
  constexpr const char* kNames[] = {"init_param", "bind_param", "block_forward", "block_backward"};
  return kNames[callback];
}

int32_t InstrumentedModel::fails(Callback callback, YokeError* err) {
  ++calls[callback];
  if (fail_after[callback] < 0 || fail_after[callback]-- > 0) return YOKE_OK;
  return fill(err, YOKE_RESOURCE_EXHAUSTED, concat("the check made ", name(callback), " fail"));
}

int32_t InstrumentedModel::deliver(const YokeBackwardArgs& args,
                                   int64_t param,
                                   const YokeTensor& grad,
                                   YokeError* err) {
  const auto* values = data<const char>(grad);
  const size_t bytes = numel(grad) * item_size(YOKE_DTYPE_OF(grad.dtype));
  std::vector<char>& copy = lent_.emplace_back(values, values + bytes);
  YokeTensor view = grad;
  view.data = copy.data();
  view.byte_offset = 0;
  const int32_t code = args.on_grad_ready(args.on_grad_ctx, param, &view, err);
  if (poison) std::memset(copy.data(), 0xff, copy.size());  // NaN in every floating dtype
  return code;
}

YokeManagedTensor* InstrumentedModel::track(YokeManagedTensor* real) {
  auto* carry = new Carry{*real, real, live_carries_};
  ++*live_carries_;
  carry->ours.manager_ctx = carry;
  carry->ours.deleter = Slots::delete_carry;
  if (other_dlpack) carry->ours.dlpack_major = 2;
  return &carry->ours;
}

std::string InstrumentedModel::leaks() const {
  if (!misuse_.empty()) return misuse_;
  if (live_saved_ != 0)
    return concat(
        live_saved_,
        " `saved` of block_forward were passed neither to block_backward nor to drop_saved");
  if (*live_carries_ != 0)
    return concat(live_carries_->load(),
                  " managed tensors (carry_out, grad_in) were not passed to their deleter");
  return "";
}

}  // namespace yoke::conformance
