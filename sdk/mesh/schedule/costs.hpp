// The memory and communication of a step on this rank, added up over its schedule. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

// What the passes over a block need at their peaks, in bytes, in addition to what existed when they
// began. The gradients of the block's parameters are included. 0: the peak is what exists before or
// after.
struct PassPeaks {
  int64_t forward = 0, backward = 0, backward_input = 0, backward_weight = 0;
};

// Bytes of one block and micro-batch; negative = unknown.
struct BlockCost {
  int64_t activation = -1;  // what its forward saves for its backward
  int64_t carry = -1;       // its output, which counts until its own backward
  int64_t input = 0;  // what it gets from another pipeline rank; only for first blocks of stages
  std::optional<PassPeaks> passes{};  // empty = unknown
};

// The ranks with which an action exchanges data.
enum class Traffic : uint8_t { kNone, kStages, kShards, kReplicas };

// The payload of the communication that an action starts.
struct Payload {
  Traffic traffic = Traffic::kNone;
  int64_t bytes = 0;  // bytes of the payload; -1 if the cost of a block is unknown
};

struct StepCosts {
  int64_t unsharded_bytes = 0;     // peak of gathered parameters and of gradients not reduced yet
  int64_t activation_bytes = 0;    // peak; -1 if the cost of a block is unknown
  int64_t dp_shard_bytes = 0;      // payload of gathers, reduce-scatters and scales
  int64_t dp_replicate_bytes = 0;  // payload of all-reduces over the replicas
  int64_t pp_bytes = 0;            // messages between stages, sent and received; -1 = unknown
};

// The costs of the actions of one schedule.
class ActionCosts {
 public:
  // actions: the schedule of `spec`. blocks: one entry per block of the spec. All three must
  // outlive this object.
  ActionCosts(const StepSpec& spec,
              const std::vector<Action>& actions,
              const std::vector<BlockCost>& blocks);

  // Returns, for each action, the bytes of the buffers for whole parameters and whole gradients
  // that exist while it runs, in addition to shards.
  std::vector<int64_t> unsharded_bytes() const;
  // Returns, for each action, the bytes of activations, and of messages that have been received,
  // that exist when it ends. Empty if the cost of a block is unknown.
  std::vector<int64_t> activation_bytes() const;
  // Returns, for each action, the bytes that blocks need at its peak, in addition to the
  // activations that exist when it ends. Empty if the cost of a block or what its passes need is
  // unknown.
  std::vector<int64_t> temporary_bytes() const;
  // Returns the payload of the communication that the action starts; kNone if it starts none.
  Payload payload_of(const Action& action) const;
  // Returns the peaks and sums over all actions.
  StepCosts totals() const;

 private:
  int64_t message_bytes(const Action& action) const;

  const StepSpec& spec_;
  const std::vector<Action>& actions_;
  const std::vector<BlockCost>& blocks_;
  const std::vector<OwnStage> stages_;
  const bool known_;  // the cost of every block is known
};

}  // namespace yoke::mesh
