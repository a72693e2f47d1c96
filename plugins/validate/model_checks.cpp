// The rules about the callbacks of the model.
#include <algorithm>

#include "plugins/validate/model.hpp"
#include "plugins/validate/tensors.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

template <class T>
bool is(const T* p, uint32_t id) {
  return p != nullptr && p->header.struct_id == id;
}

}  // namespace

// ---- Arguments ----

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
      reinterpret_cast<uintptr_t>(data<void>(*view)) % static_cast<uintptr_t>(item_size(p.dtype)) !=
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
  // A carry that was deleted cannot be read any more.
  const bool deleted = saved.carry != nullptr && !managed_->need(saved.carry, 0);
  if (deleted ||
      (saved.carry != nullptr && saved.carry_hash != hash_of(saved.carry, saved.carry_bytes))) {
    const int32_t code = monitor_.violated(
        Rule::kCarryStaysUnchanged,
        call,
        "carry_in of " + name_of(saved.block) + (deleted ? " is deleted" : " has changed"),
        err);
    if (code != YOKE_OK) return code;
  }
  return examine_block(call, args.block, err);
}

// ---- Results of the host ----

int32_t WatchedModel::examine_forward_result(const YokeForwardArgs& args,
                                             const YokeForwardResult& out,
                                             YokeError* err) {
  const bool last = args.block + 1 == summary_.num_blocks;
  std::string fault;
  if (last != (out.carry_out == nullptr))
    fault = name_of(args.block) + (last ? " returns a carry" : " returns no carry");
  if ((args.save != 0) != (out.saved != nullptr))
    fault = name_of(args.block) + concat(" has save ", args.save, " and ") +
            (out.saved == nullptr ? "no `saved`" : "a `saved`");
  if (fault.empty()) return YOKE_OK;
  return monitor_.violated(Rule::kBlocksReturnWhatTheyPromise, "block_forward", fault, err);
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

}  // namespace yoke::validate
