// One optimizer step as data: the list of actions that the executor carries out, in order. FSDP,
// HSDP, DDP, accumulation and activation checkpointing are different lists, not different engines.
//
// FSDP over two units of one block each, one micro-batch:
//
//   Unshard 0 · WaitUnshard 0 · Unshard 1 · Forward 0 · WaitUnshard 1 · Forward 1 · Backward 1 ·
//   Reshard 1 · ReduceGrad 1 · Backward 0 · Reshard 0 · WaitReduce 1 · ReduceGrad 0 · WaitReduce 0
//   · ReduceScalars · Update
//
// Unit 0 is not resharded after its forward here: its backward would gather it again at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke::ptd {

enum class ActionKind : uint8_t {
  kUnshard,             // start the all-gather of a unit over the shards
  kWaitUnshard,         // from here its parameters are whole
  kReshard,             // free the whole parameters, keep the shard
  kForward,             // a block on a micro-batch
  kRecompute,           // its forward again, now with what its backward needs
  kBackward,            // its backward; gradients are added to the buffers of its units
  kReduceGrad,          // start the reduce-scatter of a unit's gradients over the shards
  kWaitReduce,          // add the result to the gradient shard, free the whole gradients
  kAllReduceGrad,       // start the all-reduce of a unit's gradient shard over the replicas
  kWaitGrad,            // from here the gradient shard is final
  kReducePartialGrads,  // sum the gradients of what tensor parallelism does not cut over tp
  kReduceLoss,          // evaluation: sum loss and weight over the world
  kReduceScalars,       // sum loss, weight and squared gradient norm over the world
  kUpdate,              // clip and update the shards
};

struct Action {
  ActionKind kind;
  int unit = -1;
  int block = -1;
  int micro = -1;
  bool save = false;  // Forward: keep what backward needs
  int64_t bytes = 0;  // of the unit's buffer that the action gathers, frees or reduces

  bool operator==(const Action&) const = default;
};

enum class Accumulate : uint8_t {
  kSharded,    // reduce the gradients of every micro-batch: least memory
  kUnsharded,  // keep whole gradients over the step and reduce once: least communication
};

struct UnitSpec {
  bool trainable = true;
  int64_t param_bytes = 0;  // of the whole, padded buffer
  int64_t grad_bytes = 0;   // of the whole gradient buffer; 0 if frozen
};

struct StepSpec {
  std::vector<UnitSpec> units;
  std::vector<std::vector<int>> blocks;  // units that must be whole while the block runs
  int shards = 1;                        // 1: parameters are always whole
  int replicas = 1;
  int micros = 1;                     // micro-batches
  bool reshard_after_forward = true;  // false: gather once per step, reshard after the last use
  bool recompute = false;             // full activation checkpointing
  Accumulate accumulate = Accumulate::kSharded;
  bool reduce_partial_grads =
      false;  // each rank of tp has a part of the gradients of what is not cut
  bool forward_only = false;

  bool block_trains(size_t block) const;  // has a parameter that needs a gradient
  // Blocks before it need no backward; blocks.size() if nothing is trainable.
  size_t first_trained_block() const;
};

// The list of one rank. All data-parallel ranks get the same one. Every block runs at least once.
std::vector<Action> build_schedule(const StepSpec& spec);

// "ReduceGrad unit 3 micro 0, 1048576 bytes"
std::string to_string(const Action& action);

}  // namespace yoke::ptd
