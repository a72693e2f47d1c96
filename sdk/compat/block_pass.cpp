// The blocks run through the callbacks of the model, so their order is known and nothing is traced:
// parameters can be gathered before the first block that reads them, and the callback on_grad_ready
// is what hooks on gradients are in PyTorch.
#include "sdk/compat/block_pass.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "yoke/torch.hpp"

namespace yoke::compat {
namespace {

// The callback on_grad_ready. If it fails, block_backward returns its error.
int32_t receive_gradient(void* ctx, int64_t param, const YokeTensor* gradient, YokeError* err) {
  return guard(err,
               [&] { static_cast<const PassHooks*>(ctx)->on_gradient(param, borrow(*gradient)); });
}

// Returns the sums of what `run` returns for each micro-batch, in their order.
template <class Run>  // BatchTotals(const YokeMicroBatch& micro)
RankTotals sum_over_micros(const YokeBatch& batch, Run&& run) {
  require_micros(batch);
  BatchTotals totals;
  for (uint64_t m = 0; m < batch.num_micros; ++m) {
    const BatchTotals own = run(*batch.micros[m]);
    totals.loss += own.loss;
    totals.targets += own.targets;
    totals.uneven += own.uneven;
  }
  return {at::scalar_tensor(totals.loss, at::kDouble), totals.targets, totals.uneven};
}

}  // namespace

BlockPass::BlockPass(const YokeModel& model,
                     const YokeHost& host,
                     std::vector<RecomputedUnit> units,
                     PassHooks hooks)
    : model_(model),
      host_(host),
      units_(std::move(units)),
      hooks_(std::move(hooks)),
      blocks_(model.summary->num_blocks) {}

RankTotals BlockPass::train(const YokeBatch& batch, Loss loss, int data_ranks) {
  return sum_over_micros(batch, [&](const YokeMicroBatch& micro) -> BatchTotals {
    const auto [sum, targets] = train(micro, loss_grad(loss, batch, micro));
    return {sum, targets, is_uneven(loss, batch, micro, targets, data_ranks) ? 1.0 : 0.0};
  });
}

RankTotals BlockPass::evaluate(const YokeBatch& batch) {
  return sum_over_micros(batch, [&](const YokeMicroBatch& micro) -> BatchTotals {
    const auto [sum, targets] = evaluate(micro);
    return {sum, targets, 0};
  });
}

BlockPass::Result BlockPass::train(const YokeMicroBatch& micro, double loss_grad) {
  return run([&] {
    const Result result = forward(micro, true);
    backward(micro, loss_grad);
    return result;
  });
}

BlockPass::Result BlockPass::evaluate(const YokeMicroBatch& micro) {
  return run([&] { return forward(micro, false); });
}

// Runs body, and frees what it has left in blocks_, after a failure as well.
template <class F>
BlockPass::Result BlockPass::run(F&& body) {
  struct Cleanup {
    BlockPass& pass;
    ~Cleanup() {
      for (BlockState& block : pass.blocks_) {
        if (block.saved != nullptr) pass.model_.drop_saved(pass.model_.ctx, block.saved);
        block.saved = nullptr;
        block.carry.reset();
      }
    }
  } cleanup{*this};
  return body();
}

// A block in a recomputed unit saves nothing, and its input is freed unless the unit begins with
// it.
BlockPass::Result BlockPass::forward(const YokeMicroBatch& micro, bool training) {
  Result result;
  for (uint64_t b = 0; b < blocks_.size(); ++b) {
    const RecomputedUnit* unit = training ? unit_of(b) : nullptr;
    const YokeForwardResult out = forward_block(micro, b, training && unit == nullptr);
    result.loss += out.loss_sum;
    result.targets += out.loss_weight;
    const bool needs_input = training && (unit == nullptr || unit->first == b);
    if (b > 0 && !needs_input) blocks_[b - 1].carry.reset();
  }
  return result;
}

YokeForwardResult BlockPass::forward_block(const YokeMicroBatch& micro, uint64_t block, bool save) {
  check_cancel();
  hooks_.before_block(block);
  YokeForwardArgs args{};
  args.header = YOKE_HEADER(YokeForwardArgs, YOKE_ID_FORWARD_ARGS);
  args.block = block;
  args.micro = &micro;
  args.carry_in = block > 0 ? &blocks_[block - 1].carry->tensor : nullptr;
  args.save = save ? 1 : 0;
  YokeForwardResult out{};
  out.header = YOKE_HEADER(YokeForwardResult, YOKE_ID_FORWARD_RESULT);
  call([&](YokeError* err) { return model_.block_forward(model_.ctx, &args, &out, err); });
  blocks_[block].carry.reset(out.carry_out);
  blocks_[block].saved = out.saved;
  require_dlpack(blocks_[block].carry);
  return out;
}

void BlockPass::backward(const YokeMicroBatch& micro, double loss_grad) {
  ManagedTensor grad_out;
  for (uint64_t b = blocks_.size(); b-- > 0;) {
    if (const RecomputedUnit* unit = unit_of(b); unit != nullptr && unit->last == b)
      recompute(micro, *unit);
    check_cancel();
    YokeBackwardArgs args{};
    args.header = YOKE_HEADER(YokeBackwardArgs, YOKE_ID_BACKWARD_ARGS);
    args.block = b;
    args.saved = std::exchange(blocks_[b].saved, nullptr);  // block_backward consumes it
    args.grad_out = grad_out ? &grad_out->tensor : nullptr;
    args.loss_grad = loss_grad;
    args.on_grad_ready = receive_gradient;
    args.on_grad_ctx = &hooks_;
    YokeManagedTensor* grad_in = nullptr;
    call([&](YokeError* err) { return model_.block_backward(model_.ctx, &args, &grad_in, err); });
    grad_out.reset(grad_in);
    require_dlpack(grad_out);
    blocks_[b].carry.reset();
  }
}

void BlockPass::recompute(const YokeMicroBatch& micro, const RecomputedUnit& unit) {
  for (uint64_t b = unit.first; b <= unit.last; ++b) forward_block(micro, b, true);
  blocks_[unit.last].carry.reset();  // the blocks behind the unit have run their backward
}

const RecomputedUnit* BlockPass::unit_of(uint64_t block) const {
  const auto unit = std::find_if(units_.begin(), units_.end(), [&](const RecomputedUnit& u) {
    return u.first <= block && block <= u.last;
  });
  return unit == units_.end() ? nullptr : &*unit;
}

void BlockPass::check_cancel() const {
  if (host_.check_cancel(host_.ctx) != 0) throw Error(YOKE_CANCELLED, "the step was cancelled");
}

}  // namespace yoke::compat
