// Follows the tensors that BlockRunner and StageMessages hold. A tensor lives as long as somebody
// holds it: the block that keeps it for its backward, the next block that will read it, or a
// message that is in flight. Adding up a cost for each kind of action instead would count an output
// twice that is both sent and kept, or forget one that is only sent.
#include "sdk/mesh/schedule/live_activations.hpp"

#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace yoke::mesh {
namespace {

enum class Kind : uint8_t {
  kReceived,       // input of a stage, from another rank
  kOutput,         // output of a block, from its forward
  kRecomputed,     // output of a block, from its Recompute
  kKept,           // what a block keeps within itself for its backward
  kGradient,       // gradient of the output of a block
  kInputGradient,  // gradient of the input of a stage, for another rank
};
using Tensor = std::tuple<Kind, int, int>;  // kind, block or stage of this rank, micro-batch

class Live {
 public:
  Live(const StepSpec& spec, const std::vector<BlockCost>& blocks)
      : stages_(spec.stages()), trained_(spec.trained_blocks()), blocks_(blocks) {
    for (size_t s = 0; s < stages_.size(); ++s) stage_of_block_.resize(stages_[s].end, s);
  }

  int64_t bytes() const { return bytes_; }

  void apply(const Action& a) {
    switch (a.kind) {
      case ActionKind::kForward:
        return forward(a);
      case ActionKind::kRecompute:
        return recompute(a);
      case ActionKind::kBackward:
        backward(a);
        return release_saved(a);
      case ActionKind::kBackwardInput:
        return backward_input(a);
      case ActionKind::kBackwardWeight:
        return release_saved(a);
      case ActionKind::kReceiveCarry:
        return hold({Kind::kReceived, own(a), a.micro}, blocks_[stages_[own(a)].first].input);
      case ActionKind::kReceiveCarryGrad:
        return hold({Kind::kGradient, last_block(a), a.micro}, blocks_[last_block(a)].carry);
      case ActionKind::kFreeCarry:
        return release({Kind::kOutput, last_block(a), a.micro});
      case ActionKind::kFreeCarryGrad:
        return release({Kind::kInputGradient, own(a), a.micro});
      default:
        return;
    }
  }

 private:
  // What a block holds between its forward and the end of its backward.
  struct Saved {
    std::optional<Tensor> input, output;
    std::vector<Tensor> gradients;  // between BackwardInput and BackwardWeight
  };
  struct Held {
    int holders = 0;
    int64_t bytes = 0;
  };

  int own(const Action& a) const { return static_cast<int>(position_of(a.stage, stages_)); }
  int last_block(const Action& a) const { return stages_[own(a)].end - 1; }

  void hold(const Tensor& tensor, int64_t bytes) {
    Held& held = held_[tensor];
    if (++held.holders > 1) return;
    held.bytes = bytes;
    bytes_ += bytes;
  }
  void release(const Tensor& tensor) {
    const auto at = held_.find(tensor);
    if (at == held_.end() || --at->second.holders > 0) return;
    bytes_ -= at->second.bytes;
    held_.erase(at);
  }

  // Returns what a block reads; nothing for the first block of the model.
  std::optional<Tensor> input_of(int block, int micro) const {
    const size_t s = stage_of_block_[block];
    if (block > stages_[s].first) return Tensor{Kind::kOutput, block - 1, micro};
    if (stages_[s].receives()) return Tensor{Kind::kReceived, static_cast<int>(s), micro};
    if (stages_[s].from == OwnStage::kNoRank) return std::nullopt;
    return Tensor{Kind::kOutput, stages_[s - 1].end - 1, micro};
  }
  bool ends_model(int block) const {
    const OwnStage& s = stages_[stage_of_block_[block]];
    return block + 1 == s.end && s.to == OwnStage::kNoRank;
  }

  // The output is held for its reader, the next block or a message; the input no longer.
  void forward(const Action& a) {
    const std::optional<Tensor> input = input_of(a.block, a.micro);
    const Tensor output{Kind::kOutput, a.block, a.micro};
    const int64_t carry = blocks_[a.block].carry;
    if (a.save != Save::kNothing && input) {
      hold(*input, 0);  // it exists
      saved_[{a.block, a.micro}].input = input;
    }
    if (a.save == Save::kAll) save_output(a, output);
    if (!ends_model(a.block)) hold(output, carry);
    if (input) release(*input);
  }

  void save_output(const Action& a, const Tensor& output) {
    hold({Kind::kKept, a.block, a.micro}, blocks_[a.block].activation);
    hold(output, blocks_[a.block].carry);
    saved_[{a.block, a.micro}].output = output;
  }

  void recompute(const Action& a) {
    Saved& saved = saved_[{a.block, a.micro}];
    const Tensor before{Kind::kRecomputed, a.block - 1, a.micro};
    if (!saved.input && held_.count(before) > 0) {
      hold(before, 0);
      saved.input = before;
    }
    save_output(a, {Kind::kRecomputed, a.block, a.micro});
  }

  // Returns the gradient of a block's input; nothing if it is not computed.
  std::optional<Tensor> input_gradient(int block, int micro) const {
    const std::optional<Tensor> input = input_of(block, micro);
    if (!input || block < trained_.gradient_from) return std::nullopt;
    const size_t s = stage_of_block_[block];
    if (block == stages_[s].first && stages_[s].receives())
      return Tensor{Kind::kInputGradient, static_cast<int>(s), micro};
    return Tensor{Kind::kGradient, std::get<1>(*input), micro};
  }

  // The gradient of the output gives way to that of the input.
  void backward(const Action& a) {
    if (const auto gradient = input_gradient(a.block, a.micro)) {
      const auto [kind, at, micro] = *gradient;
      hold(*gradient, kind == Kind::kInputGradient ? blocks_[a.block].input : blocks_[at].carry);
    }
    release({Kind::kGradient, a.block, a.micro});
  }

  // The products that are left for later keep their inputs and the gradients of their outputs,
  // which are about as large as all that the block has kept. Among them is the gradient of the
  // block's output. The graph of their inputs keeps the block's input and its gradient. A block
  // that has kept nothing has no products.
  void backward_input(const Action& a) {
    const bool has_products = blocks_[a.block].activation > 0;
    Saved& saved = saved_[{a.block, a.micro}];
    if (has_products) keep_gradient(saved, {Kind::kGradient, a.block, a.micro});
    backward(a);
    if (const auto gradient = input_gradient(a.block, a.micro); gradient && has_products)
      keep_gradient(saved, *gradient);
    if (saved.output) release(*std::exchange(saved.output, {}));
  }

  void keep_gradient(Saved& saved, const Tensor& gradient) {
    hold(gradient, 0);  // it exists, except for the output of the last block of the model
    saved.gradients.push_back(gradient);
  }

  void release_saved(const Action& a) {
    const Saved saved = std::exchange(saved_[{a.block, a.micro}], {});
    release({Kind::kKept, a.block, a.micro});
    if (saved.input) release(*saved.input);
    if (saved.output) release(*saved.output);
    for (const Tensor& gradient : saved.gradients) release(gradient);
  }

  const std::vector<OwnStage> stages_;
  const TrainedBlocks trained_;
  const std::vector<BlockCost>& blocks_;
  std::vector<size_t> stage_of_block_;
  std::map<Tensor, Held> held_;
  std::map<std::pair<int, int>, Saved> saved_;  // keys: block and micro-batch
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<int64_t> live_activations(const StepSpec& spec,
                                      const std::vector<Action>& actions,
                                      const std::vector<BlockCost>& blocks) {
  Live live(spec, blocks);
  std::vector<int64_t> bytes;
  for (const Action& action : actions) {
    live.apply(action);
    bytes.push_back(live.bytes());
  }
  return bytes;
}

}  // namespace yoke::mesh
