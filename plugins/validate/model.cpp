// The backend gets a handle of this file for each `saved` of the host. A handle that was used is
// kept for a while, so that a second use is noticed and does not reach the host.
//
// A gradient is passed on as a copy, which is overwritten with NaN when on_grad_ready has returned.
// Each parameter has one copy. A backend that keeps the pointer therefore reads NaN until the next
// gradient of the same parameter. Writing into the host's own tensor was rejected, because autograd
// may use its memory for other gradients.
#include "plugins/validate/model.hpp"

#include <algorithm>
#include <cstring>

#include "plugins/validate/tensors.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

constexpr size_t kKeptSaved = 1024;

}  // namespace

struct WatchedModel::Slots {
  static WatchedModel& self(void* ctx) { return *static_cast<WatchedModel*>(ctx); }

  static int32_t init_param(
      void* ctx, int64_t param, int64_t begin, int64_t count, float* dst, YokeError* err) {
    WatchedModel& m = self(ctx);
    Stopwatch watch(m.monitor_);
    if (const int32_t code = m.examine_thread("init_param", err)) return code;
    const int32_t code = watch.forward(
        [&] { return m.real_.init_param(m.real_.ctx, param, begin, count, dst, err); });
    if (code != YOKE_OK) m.monitor_.note_failure("init_param", code);
    m.monitor_.trace_call(
        "backend", "init_param", code, watch, Fields().add("param", param).add("count", count));
    return code;
  }

  static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
    WatchedModel& m = self(ctx);
    Stopwatch watch(m.monitor_);
    if (const int32_t code = m.examine_thread("bind_param", err)) return code;
    if (const int32_t code = m.examine_view(param, view, err)) return code;
    const int32_t code =
        watch.forward([&] { return m.real_.bind_param(m.real_.ctx, param, view, err); });
    if (code != YOKE_OK) m.monitor_.note_failure("bind_param", code);
    if (code == YOKE_OK) m.bound_.at(static_cast<size_t>(param)) = view != nullptr;
    m.monitor_.trace_call(
        "backend", "bind_param", code, watch, Fields().add("param", param).add(view));
    return code;
  }

  static int32_t block_forward(void* ctx,
                               const YokeForwardArgs* args,
                               YokeForwardResult* out,
                               YokeError* err) {
    return self(ctx).forward(args, out, err);
  }

  static int32_t block_backward(void* ctx,
                                const YokeBackwardArgs* args,
                                YokeManagedTensor** grad_in,
                                YokeError* err) {
    return self(ctx).backward(args, grad_in, err);
  }

  static void drop_saved(void* ctx, void* handle) {
    WatchedModel& m = self(ctx);
    Stopwatch watch(m.monitor_);
    auto* saved = static_cast<Saved*>(handle);
    if (m.examine_thread("drop_saved", nullptr) != YOKE_OK || saved == nullptr) return;
    if (m.examine_saved("drop_saved", saved, nullptr) != YOKE_OK || saved->used) return;
    watch.forward([&] { m.real_.drop_saved(m.real_.ctx, saved->real); });
    m.retire(saved);
    m.monitor_.trace_call("backend",
                          "drop_saved",
                          YOKE_OK,
                          watch,
                          Fields().add("block", static_cast<int64_t>(saved->block)));
  }
};

WatchedModel::WatchedModel(const YokeModel& real,
                           const YokeHost& host,
                           std::shared_ptr<ManagedLedger> managed,
                           Monitor& monitor)
    : real_(real),
      summary_(*real.summary),
      host_(host),
      managed_(std::move(managed)),
      monitor_(monitor),
      model_(copied(real)),
      torch_(watch_torch_model(real, monitor)),
      bound_(summary_.num_params, false),
      lent_(summary_.num_params) {
  model_.ctx = this;
  model_.init_param = Slots::init_param;
  model_.bind_param = Slots::bind_param;
  model_.block_forward = Slots::block_forward;
  model_.block_backward = Slots::block_backward;
  model_.drop_saved = Slots::drop_saved;
  if (torch_) model_.header.next = torch_->header();
}

WatchedModel::~WatchedModel() {
  for (const auto& saved : live_) real_.drop_saved(real_.ctx, saved->real);
}

std::string WatchedModel::name_of(uint64_t block) const {
  return "block '" + std::string(view(summary_.blocks[block]->name)) + "'";
}

void WatchedModel::begin_step(bool evaluates) {
  evaluates_ = evaluates;
  facts_ = {};
}

WatchedModel::StepFacts WatchedModel::end_step() {
  evaluates_ = false;
  for (const auto& saved : live_) {
    monitor_.violated(
        Rule::kSavedEndsWithTheStep,
        "",
        concat(live_.size(), " `saved` are left, one of them of ") + name_of(saved->block));
    break;
  }
  return facts_;
}

void WatchedModel::retire(Saved* saved) {
  saved->used = true;
  if (saved->carry != nullptr) managed_->need(saved->carry, -1);
  const auto found = std::find_if(
      live_.begin(), live_.end(), [&](const auto& item) { return item.get() == saved; });
  if (used_.size() < kKeptSaved) used_.resize(kKeptSaved);
  used_[next_used_++ % kKeptSaved] = std::move(*found);
  live_.erase(found);
}

// ---- Calls ----

int32_t WatchedModel::forward(const YokeForwardArgs* args, YokeForwardResult* out, YokeError* err) {
  Stopwatch watch(monitor_);
  if (const int32_t code = examine_thread("block_forward", err)) return code;
  if (const int32_t code = examine_forward(args, err)) return code;
  const int32_t code =
      watch.forward([&] { return real_.block_forward(real_.ctx, args, out, err); });
  const int64_t block = args == nullptr ? -1 : static_cast<int64_t>(args->block);
  Fields fields;
  fields.add("block", block)
      .add(code == YOKE_OK && out->carry_out ? &out->carry_out->tensor : nullptr);
  monitor_.trace_call("backend", "block_forward", code, watch, fields);
  if (code != YOKE_OK) {
    monitor_.note_failure("block_forward", code);
    return code;
  }
  const int32_t fault = examine_forward_result(*args, *out, err);
  auto saved = std::make_unique<Saved>();
  saved->real = out->saved;
  saved->block = args->block;
  if (out->carry_out != nullptr) {
    const YokeTensor& output = out->carry_out->tensor;
    saved->output.assign(output.shape, output.shape + output.ndim);
    saved->output_dtype = YOKE_DTYPE_OF(output.dtype);
    out->carry_out = managed_->track(out->carry_out, "the carry_out of " + name_of(args->block));
  }
  if (out->saved != nullptr) {
    if (args->carry_in != nullptr && host_.device.type == YOKE_DEVICE_CPU &&
        managed_->need(data<void>(*args->carry_in), 1)) {
      saved->carry = data<void>(*args->carry_in);
      saved->carry_bytes = bytes_of(*args->carry_in);
      saved->carry_hash = hash_of(saved->carry, saved->carry_bytes);
    }
    out->saved = saved.get();
    live_.push_back(std::move(saved));
  }
  return fault;
}

int32_t WatchedModel::backward(const YokeBackwardArgs* args,
                               YokeManagedTensor** grad_in,
                               YokeError* err) {
  Stopwatch watch(monitor_);
  if (grad_in != nullptr) *grad_in = nullptr;
  if (const int32_t code = examine_thread("block_backward", err)) return code;
  if (args == nullptr || args->header.struct_id != YOKE_ID_BACKWARD_ARGS) {
    const int32_t code = monitor_.violated(
        Rule::kCallbackArguments, "block_backward", "args is NULL or not a YokeBackwardArgs", err);
    return code != YOKE_OK ? code : real_.block_backward(real_.ctx, args, grad_in, err);
  }
  auto* saved = static_cast<Saved*>(args->saved);
  if (const int32_t code = examine_saved("block_backward", saved, err)) return code;
  const int32_t fault = examine_backward(*args, *saved, err);
  YokeBackwardArgs mine = copied(*args);
  Backward now{*this, *args, {}};
  mine.saved = saved->real;
  mine.on_grad_ctx = &now;
  mine.on_grad_ready = [](void* ctx, int64_t param, const YokeTensor* grad, YokeError* e) {
    auto& backward = *static_cast<Backward*>(ctx);
    return backward.model.deliver(backward, param, *grad, e);
  };
  retire(saved);  // The call consumes it even if it fails.
  if (fault != YOKE_OK) {
    real_.drop_saved(real_.ctx, saved->real);
    return fault;
  }
  const int32_t code =
      watch.forward([&] { return real_.block_backward(real_.ctx, &mine, grad_in, err); });
  const bool has_grad = code == YOKE_OK && *grad_in != nullptr;
  Fields fields;
  fields.add("block", static_cast<int64_t>(args->block))
      .add(has_grad ? &(*grad_in)->tensor : nullptr);
  monitor_.trace_call("backend", "block_backward", code, watch, fields);
  if (code != YOKE_OK) monitor_.note_failure("block_backward", code);
  if (has_grad) *grad_in = managed_->track(*grad_in, "the grad_in of " + name_of(args->block));
  return code != YOKE_OK ? code : examine_gradient(now, -1, {}, err);
}

int32_t WatchedModel::deliver(Backward& now,
                              int64_t param,
                              const YokeTensor& grad,
                              YokeError* err) {
  Stopwatch watch(monitor_);
  if (const int32_t code = examine_gradient(now, param, grad, err)) return code;
  now.reported.push_back(param);
  YokeTensor lent = grad;
  std::vector<char>& copy = lent_.at(static_cast<size_t>(param));
  if (grad.device.type == YOKE_DEVICE_CPU) {
    const auto* bytes = data<const char>(grad);
    copy.assign(bytes, bytes + bytes_of(grad));
    lent.data = copy.data();
    lent.byte_offset = 0;
    ++facts_.gradients;
    facts_.nonfinite = facts_.nonfinite || has_nonfinite(lent);
  }
  const int32_t code = watch.forward(
      [&] { return now.args.on_grad_ready(now.args.on_grad_ctx, param, &lent, err); });
  std::memset(copy.data(), 0xff, copy.size());  // NaN in every floating dtype
  monitor_.trace_call(
      "host", "on_grad_ready", code, watch, Fields().add("param", param).add(&grad));
  if (code != YOKE_OK) monitor_.note_failure("on_grad_ready", code);
  return code;
}

}  // namespace yoke::validate
