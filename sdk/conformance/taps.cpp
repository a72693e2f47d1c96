#include "sdk/conformance/taps.hpp"

#include <cstring>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke::conformance {

// ---- HostTap

struct HostTap::Slots {
  static HostTap& self(void* ctx) {
    auto& tap = *static_cast<HostTap*>(ctx);
    ++tap.calls;
    return tap;
  }

  static void log(void* ctx, int32_t level, YokeString text) { self(ctx).look_at(level, text); }

  static int32_t check_cancel(void* ctx) {
    HostTap& tap = self(ctx);
    return tap.cancelled ? 1 : tap.real_.check_cancel(tap.real_.ctx);
  }

  static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
    HostTap& tap = self(ctx);
    if (tap.without_services) return nullptr;
    const YokeHeader* found = tap.real_.get_service(tap.real_.ctx, name, min_size);
    if (found == nullptr || std::strcmp(name, "yoke.collectives/1") != 0) return found;
    tap.collectives_ = reinterpret_cast<const YokeCollectives*>(found);
    tap.tapped_collectives_ = *tap.collectives_;
    tap.tapped_collectives_.all_reduce = all_reduce;
    tap.tapped_collectives_.all_gather = all_gather;
    tap.tapped_collectives_.reduce_scatter = reduce_scatter;
    tap.tapped_collectives_.broadcast = broadcast;
    tap.tapped_collectives_.comm = comm;
    tap.tapped_collectives_.ctx = ctx;
    return &tap.tapped_collectives_.header;
  }

  // Communicators carry no ctx of ours: the tap is found by the communicator, whose address may be
  // used again by a later rank.
  static int32_t comm(
      void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err) {
    HostTap& tap = self(ctx);
    const int32_t code = tap.collectives_->comm(tap.collectives_->ctx, axes, purpose, out, err);
    if (code == YOKE_OK && out != nullptr) {
      const std::lock_guard lock(owners_mutex());
      owners()[*out] = &tap;
    }
    return code;
  }

  static std::map<const YokeComm*, HostTap*>& owners() {
    static std::map<const YokeComm*, HostTap*> map;
    return map;
  }
  static std::mutex& owners_mutex() {
    static std::mutex mutex;
    return mutex;
  }
  static HostTap& owner(const YokeComm* comm) {
    const std::lock_guard lock(owners_mutex());
    return *owners().at(comm);
  }

  // YOKE_OK, or the failure that this collective was told to be.
  static int32_t fate(const YokeComm* comm, YokeError* err) {
    HostTap& tap = owner(comm);
    ++tap.calls;
    if (tap.fail_collective < 0 || tap.fail_collective-- > 0) return YOKE_OK;
    return fill(err, YOKE_UNAVAILABLE, "the check made this collective fail");
  }

  static int32_t all_reduce(
      YokeComm* c, const YokeTensor* t, int32_t op, YokeWork** work, YokeError* err) {
    const int32_t code = fate(c, err);
    return code != YOKE_OK ? code : owner(c).collectives_->all_reduce(c, t, op, work, err);
  }
  static int32_t all_gather(
      YokeComm* c, const YokeTensor* out, const YokeTensor* in, YokeWork** work, YokeError* err) {
    const int32_t code = fate(c, err);
    return code != YOKE_OK ? code : owner(c).collectives_->all_gather(c, out, in, work, err);
  }
  static int32_t reduce_scatter(YokeComm* c,
                                const YokeTensor* out,
                                const YokeTensor* in,
                                int32_t op,
                                YokeWork** work,
                                YokeError* err) {
    const int32_t code = fate(c, err);
    return code != YOKE_OK ? code
                           : owner(c).collectives_->reduce_scatter(c, out, in, op, work, err);
  }
  static int32_t broadcast(
      YokeComm* c, const YokeTensor* t, int32_t root, YokeWork** work, YokeError* err) {
    const int32_t code = fate(c, err);
    return code != YOKE_OK ? code : owner(c).collectives_->broadcast(c, t, root, work, err);
  }
};

HostTap::HostTap(const YokeHost& host) : real_(host), tapped_(host) {
  tapped_.ctx = this;
  tapped_.log = Slots::log;
  tapped_.check_cancel = Slots::check_cancel;
  tapped_.get_service = Slots::get_service;
}

namespace {

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t more = c < 0x80 ? 0 : c >> 5 == 6 ? 1 : c >> 4 == 14 ? 2 : c >> 3 == 30 ? 3 : 9;
    if (more == 9 || i + more >= text.size() + (more == 0)) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace

void HostTap::look_at(int32_t level, const YokeString& line) {
  const std::lock_guard lock(mutex_);
  const std::string_view text = view(line);
  if (level < YOKE_LOG_DEBUG || level > YOKE_LOG_ERROR)
    log_fault_ = "log got the level " + std::to_string(level) + "; allowed: 1 to 4";
  if (text.find('\n') != std::string_view::npos)
    log_fault_ = "log got a line with a newline in it: '" + std::string(text.substr(0, 60)) + "'";
  if (!is_utf8(text)) log_fault_ = "log got a line that is not UTF-8";
}

std::string HostTap::log_fault() const {
  const std::lock_guard lock(mutex_);
  return log_fault_;
}

// ---- ModelTap

struct ModelTap::Saved {
  void* real;
  uint64_t block;
};

// A managed tensor of the model's, under a deleter of ours.
struct ModelTap::Carry {
  YokeManagedTensor ours;
  YokeManagedTensor* real;
  std::shared_ptr<std::atomic<int64_t>> live;
};

struct ModelTap::Slots {
  static ModelTap& self(void* ctx) { return *static_cast<ModelTap*>(ctx); }

  static int32_t init_param(
      void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
    ModelTap& tap = self(ctx);
    if (const int32_t code = tap.fails(kInit, err)) return code;
    return tap.real_.init_param(tap.real_.ctx, param, begin, count, dst, err);
  }

  static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* t, YokeError* err) {
    ModelTap& tap = self(ctx);
    if (t != nullptr) {
      if (const int32_t code = tap.fails(kBind, err)) return code;
    }
    return tap.real_.bind_param(tap.real_.ctx, param, t, err);
  }

  static int32_t block_forward(void* ctx,
                               const YokeForwardArgs* args,
                               YokeForwardResult* out,
                               YokeError* err) {
    ModelTap& tap = self(ctx);
    if (const int32_t code = tap.fails(kForward, err)) return code;
    const int32_t code = tap.real_.block_forward(tap.real_.ctx, args, out, err);
    if (code != YOKE_OK) return code;
    if (out->carry_out != nullptr) out->carry_out = tap.watched(out->carry_out);
    if (out->saved != nullptr) {
      out->saved = new Saved{out->saved, args->block};
      ++tap.live_saved_;
    }
    return code;
  }

  static int32_t block_backward(void* ctx,
                                const YokeBackwardArgs* args,
                                YokeManagedTensor** grad_in,
                                YokeError* err) {
    ModelTap& tap = self(ctx);
    const std::unique_ptr<Saved> saved(static_cast<Saved*>(args->saved));
    if (saved == nullptr) {
      tap.misuse_ = "block_backward was called without what block_forward saved";
      return fill(err, YOKE_INVALID_ARGUMENT, tap.misuse_);
    }
    --tap.live_saved_;
    if (const int32_t code = tap.fails(kBackward, err)) {
      tap.real_.drop_saved(tap.real_.ctx, saved->real);
      return code;
    }
    struct Receiver {
      ModelTap& tap;
      const YokeBackwardArgs& args;
    } receiver{tap, *args};
    YokeBackwardArgs mine = *args;
    mine.saved = saved->real;
    mine.on_grad_ctx = &receiver;
    mine.on_grad_ready = [](void* r, int64_t param, const YokeTensor* grad, YokeError* e) {
      auto& to = *static_cast<Receiver*>(r);
      return to.tap.disguise ? hand_on_copy(to.args, param, *grad, e)
                             : to.tap.hand_on(to.args, param, *grad, e);
    };
    const int32_t code = tap.real_.block_backward(tap.real_.ctx, &mine, grad_in, err);
    if (code == YOKE_OK && grad_in != nullptr && *grad_in != nullptr)
      *grad_in = tap.watched(*grad_in);
    return code;
  }

  // The same values at an offset, with strides written out.
  static int32_t hand_on_copy(const YokeBackwardArgs& args,
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
    ModelTap& tap = self(ctx);
    const std::unique_ptr<Saved> ours(static_cast<Saved*>(saved));
    if (ours == nullptr) return;
    --tap.live_saved_;
    tap.real_.drop_saved(tap.real_.ctx, ours->real);
  }

  static void delete_carry(YokeManagedTensor* ours) {
    auto* carry = static_cast<Carry*>(ours->manager_ctx);
    --*carry->live;
    if (carry->real->deleter != nullptr) carry->real->deleter(carry->real);
    delete carry;
  }
};

ModelTap::ModelTap(const YokeModel& model)
    : real_(model), tapped_(model), live_carries_(std::make_shared<std::atomic<int64_t>>(0)) {
  for (int64_t& left : fail_after) left = -1;
  tapped_.ctx = this;
  tapped_.init_param = Slots::init_param;
  tapped_.bind_param = Slots::bind_param;
  tapped_.block_forward = Slots::block_forward;
  tapped_.block_backward = Slots::block_backward;
  tapped_.drop_saved = Slots::drop_saved;
}

const char* ModelTap::name(Callback callback) {
  constexpr const char* kNames[] = {"init_param", "bind_param", "block_forward", "block_backward"};
  return kNames[callback];
}

int32_t ModelTap::fails(Callback callback, YokeError* err) {
  ++calls[callback];
  if (fail_after[callback] < 0 || fail_after[callback]-- > 0) return YOKE_OK;
  return fill(
      err, YOKE_RESOURCE_EXHAUSTED, std::string("the check made ") + name(callback) + " fail");
}

int32_t ModelTap::hand_on(const YokeBackwardArgs& args,
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
  if (spoil) std::memset(copy.data(), 0xff, copy.size());  // NaN in every floating dtype
  return code;
}

YokeManagedTensor* ModelTap::watched(YokeManagedTensor* real) {
  auto* carry = new Carry{*real, real, live_carries_};
  ++*live_carries_;
  carry->ours.manager_ctx = carry;
  carry->ours.deleter = Slots::delete_carry;
  return &carry->ours;
}

std::string ModelTap::owed() const {
  if (!misuse_.empty()) return misuse_;
  if (live_saved_ != 0)
    return std::to_string(live_saved_) +
           " `saved` of block_forward were given neither to block_backward nor to drop_saved";
  if (*live_carries_ != 0)
    return std::to_string(*live_carries_) +
           " managed tensors (carry_out, grad_in) were not given to their deleter";
  return "";
}

}  // namespace yoke::conformance
