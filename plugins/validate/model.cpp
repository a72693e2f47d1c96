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

template <class T>
bool is(const T* p, uint32_t id) {
  return p != nullptr && p->header.struct_id == id;
}

const void* memory_of(const YokeTensor* tensor) {
  return tensor == nullptr ? nullptr : data<void>(*tensor);
}

}  // namespace

// What the backend gets for a `saved`.
struct WatchedModel::Saved {
  WatchedModel* owner;
  void* real;
  uint64_t block;
  const void* carry;    // address of carry_in, if it is a live tensor of the host; else NULL
  YokeTensor carry_in;  // valid if carry is not NULL
  uint64_t carry_hash;
  std::vector<int64_t> output;  // shape of carry_out
  int32_t output_dtype = 0;     // 0 = the last block
  bool used = false;
};

struct WatchedModel::Backward {
  WatchedModel& model;
  const YokeBackwardArgs& args;
  std::vector<int64_t> reported;
};

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

// ---- Checks of the arguments ----

int32_t WatchedModel::examine_thread(const char* call, YokeError* err) {
  if (monitor_.current().thread == std::this_thread::get_id()) return YOKE_OK;
  const bool idle = monitor_.current().name == nullptr;
  return monitor_.violated(Rule::kThreadOfTheCall,
                           call,
                           idle ? "it is called while no function of the backend runs"
                                : "it is called by another thread",
                           err);
}

int32_t WatchedModel::examine_view(int64_t param, const YokeTensor* view, YokeError* err) {
  if (param < 0 || param >= static_cast<int64_t>(summary_.num_params)) {
    return monitor_.violated(Rule::kCallbackArguments,
                             "bind_param",
                             concat("the parameter is ", param, " of ", summary_.num_params),
                             err);
  }
  if (view == nullptr) return YOKE_OK;
  const YokeParameter& p = *summary_.params[param];
  std::string fault = tensor_fault("the view", view, host_.device);
  if (fault.empty() && (YOKE_DTYPE_OF(view->dtype) != p.dtype || view->ndim != p.ndim ||
                        !std::equal(view->shape, view->shape + view->ndim, p.shape)))
    fault = "the view is " + shape_text(*view);
  if (fault.empty() &&
      reinterpret_cast<uintptr_t>(memory_of(view)) % static_cast<uintptr_t>(item_size(p.dtype)) !=
          0)
    fault = "the view is not aligned to its elements";
  if (fault.empty()) return YOKE_OK;
  fault += ", and parameter '" + std::string(yoke::view(p.name)) + "' is " +
           shape_text(p.dtype, p.shape, p.ndim);
  return monitor_.violated(Rule::kBoundViews, "bind_param", fault, err);
}

int32_t WatchedModel::examine_block(const char* call, uint64_t block, YokeError* err) {
  if (block >= summary_.num_blocks) {
    return monitor_.violated(Rule::kCallbackArguments,
                             call,
                             concat("the block is ", block, " of ", summary_.num_blocks),
                             err);
  }
  const YokeBlock& b = *summary_.blocks[block];
  for (uint64_t i = 0; i < b.num_params; ++i) {
    if (bound_[static_cast<size_t>(b.params[i])]) continue;
    return monitor_.violated(Rule::kBoundBeforeUse,
                             call,
                             name_of(block) + " runs while its parameter '" +
                                 std::string(view(summary_.params[b.params[i]]->name)) +
                                 "' is not bound",
                             err);
  }
  return YOKE_OK;
}

int32_t WatchedModel::examine_forward(const YokeForwardArgs* args, YokeError* err) {
  std::string fault;
  if (!is(args, YOKE_ID_FORWARD_ARGS)) fault = "args is NULL or not a YokeForwardArgs";
  if (fault.empty() && !is(args->micro, YOKE_ID_MICRO_BATCH))
    fault = "micro is NULL or not a YokeMicroBatch";
  if (fault.empty() && args->save != 0 && args->save != 1) fault = concat("save is ", args->save);
  if (fault.empty() && args->block < summary_.num_blocks) {
    if (args->block == 0 && args->carry_in != nullptr) fault = "the first block has a carry_in";
    if (args->block > 0) fault = tensor_fault("carry_in", args->carry_in, host_.device);
    for (uint64_t i = 0; fault.empty() && i < args->micro->num_inputs; ++i) {
      YokeTensor input = args->micro->inputs[i].tensor;
      input.strides = nullptr;  // inputs may have strides
      fault = tensor_fault("an input", &input, host_.device);
    }
  }
  if (!fault.empty())
    return monitor_.violated(Rule::kCallbackArguments, "block_forward", fault, err);
  return examine_block("block_forward", args->block, err);
}

int32_t WatchedModel::examine_saved(const char* call, Saved* saved, YokeError* err) {
  if (saved == nullptr)
    return monitor_.violated(Rule::kSavedIsUsedOnce, call, "`saved` is NULL", err);
  const auto same = [&](const auto& item) { return item.get() == saved; };
  if (std::any_of(live_.begin(), live_.end(), same)) return YOKE_OK;
  const bool used = std::any_of(used_.begin(), used_.end(), same);
  const int32_t code =
      monitor_.violated(Rule::kSavedIsUsedOnce,
                        call,
                        used ? "a `saved` of " + name_of(saved->block) + " is used again"
                             : "`saved` is none that block_forward has returned",
                        err);
  // The host has freed what is behind the handle, so the call cannot be passed on.
  return code != YOKE_OK ? code : fill(err, YOKE_INVALID_ARGUMENT, "`saved` cannot be used");
}

int32_t WatchedModel::examine_backward(const YokeBackwardArgs& args,
                                       const Saved& saved,
                                       YokeError* err) {
  const char* const call = "block_backward";
  if (evaluates_) {
    const int32_t code = monitor_.violated(
        Rule::kEvaluationChangesNothing, call, "it is called in an evaluation", err);
    if (code != YOKE_OK) return code;
  }
  if (args.block != saved.block) {
    const std::string fault =
        "`saved` is of " + name_of(saved.block) + concat(", the call of block ", args.block);
    if (const int32_t code = monitor_.violated(Rule::kSavedIsUsedOnce, call, fault, err))
      return code;
  }
  std::string fault;
  if (args.on_grad_ready == nullptr) fault = "on_grad_ready is NULL";
  if (saved.output_dtype == 0 && args.grad_out != nullptr) fault = "the last block has a grad_out";
  if (saved.output_dtype != 0) {
    fault = tensor_fault("grad_out", args.grad_out, host_.device);
    if (fault.empty() && (YOKE_DTYPE_OF(args.grad_out->dtype) != saved.output_dtype ||
                          !std::equal(saved.output.begin(),
                                      saved.output.end(),
                                      args.grad_out->shape,
                                      args.grad_out->shape + args.grad_out->ndim)))
      fault =
          "grad_out is " + shape_text(*args.grad_out) + ", and carry_out was " +
          shape_text(
              saved.output_dtype, saved.output.data(), static_cast<int32_t>(saved.output.size()));
  }
  if (!fault.empty()) {
    if (const int32_t code = monitor_.violated(Rule::kCallbackArguments, call, fault, err))
      return code;
  }
  if (saved.carry != nullptr && saved.carry_hash != hash_of(saved.carry_in)) {
    const int32_t code = monitor_.violated(Rule::kCarryStaysUnchanged,
                                           call,
                                           "carry_in of " + name_of(saved.block) + " has changed",
                                           err);
    if (code != YOKE_OK) return code;
  }
  return examine_block(call, args.block, err);
}

// ---- Calls ----

int32_t WatchedModel::examine_forward_result(const YokeForwardArgs& args,
                                             const YokeForwardResult& out,
                                             YokeError* err) {
  const bool last = is_last(args.block);
  std::string fault;
  if (last != (out.carry_out == nullptr))
    fault = name_of(args.block) + (last ? " returns a carry" : " returns no carry");
  if ((args.save != 0) != (out.saved != nullptr))
    fault = name_of(args.block) + concat(" has save ", args.save, " and ") +
            (out.saved == nullptr ? "no `saved`" : "a `saved`");
  if (fault.empty()) return YOKE_OK;
  return monitor_.violated(Rule::kBlocksReturnWhatTheyPromise, "block_forward", fault, err);
}

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
  saved->owner = this;
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
        managed_->need(memory_of(args->carry_in), 1)) {
      saved->carry = memory_of(args->carry_in);
      saved->carry_in = *args->carry_in;
      saved->carry_hash = hash_of(saved->carry_in);
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
  if (!is(args, YOKE_ID_BACKWARD_ARGS)) {
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

// Checks a gradient, or with param = -1 that all of them have been reported.
int32_t WatchedModel::examine_gradient(Backward& now,
                                       int64_t param,
                                       const YokeTensor& grad,
                                       YokeError* err) {
  const YokeBlock& block = *summary_.blocks[now.args.block];
  std::string fault;
  const auto reported = [&](int64_t p) {
    return std::find(now.reported.begin(), now.reported.end(), p) != now.reported.end();
  };
  if (param < 0) {
    for (uint64_t i = 0; i < block.num_params; ++i) {
      const YokeParameter& p = *summary_.params[block.params[i]];
      if (p.trainable != 0 && !reported(block.params[i]))
        fault = "the gradient of '" + std::string(view(p.name)) + "' is not reported";
    }
  } else if (std::find(block.params, block.params + block.num_params, param) ==
             block.params + block.num_params) {
    fault = concat("a gradient of parameter ", param, " is reported");
  } else {
    const YokeParameter& p = *summary_.params[param];
    if (reported(param))
      fault = "a gradient of '" + std::string(view(p.name)) + "' is reported again";
    if (YOKE_DTYPE_OF(grad.dtype) != p.dtype || grad.ndim != p.ndim ||
        !std::equal(grad.shape, grad.shape + grad.ndim, p.shape))
      fault = "the gradient of '" + std::string(view(p.name)) + "' is " + shape_text(grad);
  }
  if (fault.empty()) return YOKE_OK;
  return monitor_.violated(Rule::kBlocksReturnWhatTheyPromise,
                           "block_backward",
                           name_of(now.args.block) + ": " + fault,
                           err);
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
    copy.assign(bytes, bytes + numel(grad) * item_size(YOKE_DTYPE_OF(grad.dtype)));
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
