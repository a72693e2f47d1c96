// The blocks run through the callbacks of the model, so their order is known and nothing is traced:
// a bucket is gathered before the first block that reads it, and the callback on_grad_ready is what
// Megatron's hooks on gradients are.
#include "plugins/megatron_compat/pass.hpp"

#include <algorithm>
#include <string_view>

#include "yoke/backend.hpp"

namespace yoke::megatron_compat {
namespace {

// The callback on_grad_ready. If it fails, block_backward returns its error.
int32_t receive_gradient(void* ctx, int64_t param, const YokeTensor* gradient, YokeError* err) {
  return guard(err, [&] { static_cast<Gradients*>(ctx)->add(param, *gradient); });
}

// Returns the name of a block without what distinguishes the halves of a layer.
std::string_view layer_name(const YokeModelSummary& model, uint64_t block) {
  std::string_view name = view(model.blocks[block]->name);
  for (const std::string_view half : {".self_attn", ".mlp"}) {
    if (name.ends_with(half)) name.remove_suffix(half.size());
  }
  return name;
}

}  // namespace

std::vector<RecomputedUnit> recomputed_units(const YokeModelSummary& model,
                                             Recompute recompute,
                                             int64_t layers) {
  std::vector<RecomputedUnit> of_layers;
  for (uint64_t b = 1; b + 1 < model.num_blocks; ++b) {
    if (!of_layers.empty() && layer_name(model, b) == layer_name(model, b - 1)) {
      of_layers.back().last = b;
    } else {
      of_layers.push_back({b, b});
    }
  }
  const auto count = static_cast<size_t>(layers);
  if (recompute == Recompute::kNone) return {};
  if (recompute == Recompute::kBlock) {
    of_layers.resize(std::min(of_layers.size(), count));
    return of_layers;
  }
  std::vector<RecomputedUnit> units;
  for (size_t i = 0; i < of_layers.size(); i += count)
    units.push_back(
        {of_layers[i].first, of_layers[std::min(i + count, of_layers.size()) - 1].last});
  return units;
}

int64_t activation_bytes(const YokeModelSummary& model,
                         const std::vector<RecomputedUnit>& units,
                         int64_t sequences) {
  int64_t kept = 0, largest = 0;  // always, and while a unit is computed again
  auto unit = units.begin();
  int64_t again = 0;
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    if (block.activation_bytes < 0 || block.carry_bytes < 0) return -1;
    const bool is_recomputed = unit != units.end() && b >= unit->first;
    if (is_recomputed) {
      again += block.activation_bytes;
      if (b < unit->last) {
        again += block.carry_bytes;
        continue;
      }
      largest = std::max(largest, again);
      again = 0;
      ++unit;
    } else {
      kept += block.activation_bytes;
    }
    kept += block.carry_bytes;
  }
  return (kept + largest) * sequences;
}

Pass::Pass(const YokeModel& model,
           const YokeHost& host,
           std::vector<RecomputedUnit> units,
           Gather& gather,
           Gradients& gradients)
    : model_(model),
      host_(host),
      units_(std::move(units)),
      gather_(gather),
      gradients_(gradients),
      blocks_(model.summary->num_blocks) {}

Pass::Result Pass::train(const YokeMicroBatch& micro, double loss_grad) {
  return run([&] {
    const Result result = forward(micro, true);
    backward(micro, loss_grad);
    return result;
  });
}

Pass::Result Pass::evaluate(const YokeMicroBatch& micro) {
  return run([&] { return forward(micro, false); });
}

// Runs body, and frees what it has left in blocks_, after a failure as well.
template <class F>
Pass::Result Pass::run(F&& body) {
  struct Cleanup {
    Pass& pass;
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
Pass::Result Pass::forward(const YokeMicroBatch& micro, bool training) {
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

YokeForwardResult Pass::forward_block(const YokeMicroBatch& micro, uint64_t block, bool save) {
  check_cancel();
  gather_.before(block);
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

void Pass::backward(const YokeMicroBatch& micro, double loss_grad) {
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
    args.on_grad_ctx = &gradients_;
    YokeManagedTensor* grad_in = nullptr;
    call([&](YokeError* err) { return model_.block_backward(model_.ctx, &args, &grad_in, err); });
    grad_out.reset(grad_in);
    require_dlpack(grad_out);
    blocks_[b].carry.reset();
  }
}

void Pass::recompute(const YokeMicroBatch& micro, const RecomputedUnit& unit) {
  for (uint64_t b = unit.first; b <= unit.last; ++b) forward_block(micro, b, true);
  blocks_[unit.last].carry.reset();  // the blocks behind the unit have run their backward
}

const RecomputedUnit* Pass::unit_of(uint64_t block) const {
  const auto unit = std::find_if(units_.begin(), units_.end(), [&](const RecomputedUnit& u) {
    return u.first <= block && block <= u.last;
  });
  return unit == units_.end() ? nullptr : &*unit;
}

void Pass::check_cancel() const {
  if (host_.check_cancel(host_.ctx) != 0) throw Error(YOKE_CANCELLED, "the step was cancelled");
}

}  // namespace yoke::megatron_compat
