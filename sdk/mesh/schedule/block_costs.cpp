// The host knows which tensors a block makes, and a backend knows what its axes do with them. So
// the host reports bytes by the rule after which a tensor is cut (yoke/cut_costs.hpp), and this
// file applies the rules. Running a block on distributed tensors to count its bytes instead would
// need ranks and their memory, and `plan` has neither.
//
// A model that does not report such bytes may still be divided by cp, because every operator sees
// fewer tokens, but not by tp, which cuts some tensors and not others.
#include "sdk/mesh/schedule/block_costs.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "yoke/cut_costs.hpp"
#include "yoke/tensor.hpp"

namespace yoke::mesh {
namespace {

// Collects the peaks of the passes from points of which each may be one.
class Peaks {
 public:
  void add(int32_t kind, int64_t bytes) {
    const std::map<int32_t, int64_t*> peaks{
        {YOKE_FORECAST_FORWARD, &passes_.forward},
        {YOKE_FORECAST_BACKWARD, &passes_.backward},
        {YOKE_FORECAST_BACKWARD_INPUT, &passes_.backward_input},
        {YOKE_FORECAST_BACKWARD_WEIGHT, &passes_.backward_weight}};
    known_ = true;
    if (const auto peak = peaks.find(kind); peak != peaks.end())
      *peak->second = std::max(*peak->second, bytes);
  }
  // Returns nothing if there were no points.
  std::optional<PassPeaks> result() const { return known_ ? std::optional(passes_) : std::nullopt; }

 private:
  PassPeaks passes_;
  bool known_ = false;
};

// Returns the costs of a block whose tensors are whole, but for the part of the sequence that each
// rank along cp has.
BlockCost whole_cost(const YokeBlock& block, int64_t sequences, int64_t cp) {
  if (!YOKE_HAS(YokeBlock, &block, carry_bytes) || block.activation_bytes < 0 ||
      block.carry_bytes < 0)
    return {};
  Peaks peaks;
  if (YOKE_HAS(YokeBlock, &block, num_pass_bytes)) {
    for (uint64_t i = 0; i < block.num_pass_bytes; ++i) {
      const YokePassBytes& point = block.pass_bytes[i];
      peaks.add(point.kind, point.bytes_per_sequence * sequences / cp + point.bytes);
    }
  }
  return {.activation = block.activation_bytes * sequences / cp,
          .carry = block.carry_bytes * sequences / cp,
          .passes = peaks.result()};
}

// How the axes cut the tensors of a micro-batch.
struct Cuts {
  int64_t sequences, cp, tp;
  double weights;  // share of the block's parameters that a rank has
  bool sequence_parallel, loss_parallel;

  int64_t bytes(const CutBytes& of) const {
    const int64_t stream = sequence_parallel ? tp : 1, logits = loss_parallel ? tp : 1;
    const int64_t inputs = stream > 1 ? of.inputs : 0;
    const int64_t per_sequence =
        of.stream / stream + of.parts / tp + inputs + of.logits / logits + of.whole;
    return per_sequence * sequences / cp +
           static_cast<int64_t>(weights * static_cast<double>(of.weights));
  }
  // Returns the bytes needed while logits are gathered, without the result: this rank's logits, and
  // the received logits of all ranks, which are then copied into the right order.
  int64_t gathering(const CutBytes& kept) const {
    return tp > 1 && !loss_parallel ? bytes({.logits = kept.logits + kept.logits / tp}) : 0;
  }
};

// Returns the share of a block's parameters that each rank along tp has.
double share_of_weights(const YokeModelSummary& model, const YokeBlock& block, int64_t tp) {
  double own = 0, all = 0;
  for (uint64_t i = 0; i < block.num_params; ++i) {
    const YokeParameter& param = *model.params[block.params[i]];
    const auto elements = static_cast<double>(numel(param.shape, param.ndim));
    own += param.tp_cut > 0 ? elements / static_cast<double>(tp) : elements;
    all += elements;
  }
  return all == 0 ? 1 : own / all;
}

BlockCost cut_cost(const CutBlock& block, const Cuts& cuts) {
  Peaks peaks;
  for (uint64_t i = 0; i < block.num_passes; ++i) {
    const CutPass& point = block.passes[i];
    const bool forward = point.kind == YOKE_FORECAST_FORWARD;
    peaks.add(point.kind, cuts.bytes(point.bytes) + (forward ? cuts.gathering(block.kept) : 0));
  }
  return {.activation = cuts.bytes(block.kept),
          .carry = cuts.bytes(block.carry),
          .passes = peaks.result()};
}

}  // namespace

BlockCost block_cost(const YokeModelSummary& model,
                     int block,
                     const YokePlan& plan,
                     const TensorCuts& cuts) {
  const int64_t sequences = plan.micro_batch, cp = plan.degree[YOKE_CP], tp = plan.degree[YOKE_TP];
  const CutCosts* const cut = cut_costs(model);
  if (cp * tp > 1 && cut != nullptr) {
    return cut_cost(cut->blocks[block],
                    {sequences,
                     cp,
                     tp,
                     share_of_weights(model, *model.blocks[block], tp),
                     cuts.sequence_parallel,
                     cuts.loss_parallel});
  }
  return tp == 1 ? whole_cost(*model.blocks[block], sequences, cp) : BlockCost{};
}

std::vector<BlockCost> block_costs(const YokeModelSummary& model,
                                   const std::vector<int>& blocks,
                                   const PipelineSpec& pipeline,
                                   const YokePlan& plan,
                                   const TensorCuts& cuts) {
  std::vector<BlockCost> costs;
  for (const int b : blocks) costs.push_back(block_cost(model, b, plan, cuts));
  for (const OwnStage& stage : pipeline.stages) {
    if (stage.receives())
      costs[stage.first].input = block_cost(model, blocks[stage.first] - 1, plan, cuts).carry;
  }
  return costs;
}

}  // namespace yoke::mesh
