// A schedule is one optimizer step as data: the list of actions that the executor carries out.
// FSDP, HSDP, DDP, accumulation and activation checkpointing are different lists, not different
// engines. A unit (units.hpp) is "whole" while this rank has all of its elements, not only its
// shard. In a pipeline (pipeline.hpp) a rank has only the blocks of its stages, and the list says
// when it exchanges activations with the ranks of the neighbouring stages; elsewhere there is one
// stage. The "carry" is the tensor that one block passes to the next.
//
// FSDP over two units of one block each, one micro-batch:
//
//   Unshard 0 · WaitUnshard 0 · Unshard 1 · Forward 0 · WaitUnshard 1 · Forward 1 · Backward 1 ·
//   Reshard 1 · ReduceGrad 1 · Backward 0 · Reshard 0 · WaitReduce 1 · ReduceGrad 0 · WaitReduce 0
//   · ReduceScalars · Update
//
// Unit 0 is not resharded after its forward: the gather for its backward would start right away,
// before Forward 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sdk/mesh/schedule/order_file.hpp"
#include "sdk/mesh/schedule/pipeline.hpp"
#include "sdk/mesh/schedule/stages.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::mesh {

enum class ActionKind : uint8_t {
  kReduceScales,        // all-reduce the fp8 scales over the shards, round the shards to fp8
  kUnshard,             // start the all-gather of a unit over the shards
  kWaitUnshard,         // wait for that all-gather; the unit is whole afterwards
  kReshard,             // free the whole parameters, keep the shard
  kForward,             // run a block on a micro-batch
  kRecompute,           // run a block's forward again and keep what its backward needs
  kBackward,            // run a block's backward; adds gradients to the buffers of its units
  kBackwardInput,       // the part of a block's backward that leads to the gradient of its input
  kBackwardWeight,      // the rest of it, after kBackwardInput: gradients of weights
  kSendCarry,           // start to send the output of a stage to the next stage
  kReceiveCarry,        // start to receive the input of a stage from the stage before it
  kWaitCarry,           // wait for that message; the stage can run forward afterwards
  kFreeCarry,           // wait until the output of a stage has been sent
  kSendCarryGrad,       // start to send the gradient of a stage's input to the stage before it
  kReceiveCarryGrad,    // start to receive the gradient of a stage's output from the next stage
  kWaitCarryGrad,       // wait for that message; the stage can run backward afterwards
  kFreeCarryGrad,       // wait until the gradient of a stage's input has been sent, and free it
  kReduceGrad,          // start the reduce-scatter of a unit's gradients over the shards
  kWaitReduce,          // wait for that reduction, add its result to the shard, free the buffer
  kAllReduceGrad,       // start the all-reduce of a unit's gradient shard over the replicas
  kWaitGrad,            // wait for that all-reduce; the gradient shard is final afterwards
  kExchangeTied,        // add the gradient shard that another pipeline rank has for the same unit
  kReducePartialGrads,  // all-reduce the gradients of tp-replicated parameters over tp
  kReduceLoss,          // evaluation: all-reduce loss and number of targets over the world
  kReduceScalars,       // all-reduce loss, number of targets and squared gradient norm
  kUpdate,              // clip the gradients and update the shards; Muon gathers matrices for it
};

// The communicators that actions use. The members of Comms have these names.
enum class CommPurpose : uint8_t {
  kNone,                // the action issues no collective
  kUnshard,             // the ranks with the shards of one replica
  kReduceGrad,          // the same ranks as kUnshard, but a queue of its own
  kAllReduceGrad,       // the ranks that hold the same shard, one of each replica
  kReducePartialGrads,  // the ranks of tp, which have the same data
  kWorld,               // all ranks
};

// What an action does with a message between two stages.
struct MessageInfo {
  enum Step : uint8_t { kSend, kReceive, kWait, kFree };

  // True: the gradient of an output, sent to the preceding stage. False: an output, sent to the
  // next stage.
  bool grad;
  Step step;

  // Returns true on the side that sends.
  bool is_sent() const { return step == kSend || step == kFree; }
  // Returns true if the message crosses the output side of the action's stage, false if it crosses
  // the input side.
  bool is_at_output() const { return is_sent() != grad; }
};

// Properties of a kind of action, which the checker and messages use.
struct ActionInfo {
  ActionKind kind;
  const char* name;                         // the name in messages and traces, "ReduceGrad"
  CommPurpose comm;                         // communicator of the collective that it issues
  std::optional<ActionKind> awaits;         // action whose collective it waits for; may be itself
  std::optional<MessageInfo> message = {};  // empty: the action is about no message
};
const ActionInfo& info_of(ActionKind kind);
bool is_computation(ActionKind kind);  // true if the action computes a block

// What a forward keeps for the block's backward.
enum class Save : uint8_t {
  kNothing,  // no backward follows, or it starts from what another block keeps
  kInput,    // the block's input, from which Recompute starts
  kAll,      // everything that the backward needs
};

struct Action {
  ActionKind kind;
  int unit = -1;
  int block = -1;
  int micro = -1;
  int stage = -1;              // messages only: the stage that sends or receives, among all stages
  int peer = -1;               // messages and ExchangeTied: the other rank, as a rank along pp
  Save save = Save::kNothing;  // only for kForward
  int64_t bytes = 0;           // bytes of the buffer that the action gathers, frees or reduces

  bool operator==(const Action&) const = default;
};

// Returns, for example, "ReduceGrad unit 3 micro 0, 1048576 bytes" or "SendCarry stage 1 micro 2,
// peer rank 2 of pp".
std::string to_string(const Action& action);

enum class Accumulate : uint8_t {
  kSharded,    // reduce the gradients of every micro-batch: least memory
  kUnsharded,  // keep whole gradients over the step and reduce once: least communication
};

// Activation checkpointing: which activations are computed again for the backward.
enum class Recompute : uint8_t {
  kNone,
  kBlocks,  // those within each block, right before its backward; the inputs of all blocks are kept
  // Those within each stage, before its backward; only the stage's input is kept. Nothing else is
  // needed, so it happens while the gradient of the stage's output is still under way.
  kStages,
  kUnits,  // those within each unit of StepSpec::recomputed, before its backward
};

// Consecutive blocks of a rank, [first, end), that keep only the input of the first one.
struct RecomputedBlocks {
  int first, end;
};

struct UnitSpec {
  bool trainable = true;
  int64_t param_bytes = 0;  // bytes of the whole, padded buffer
  int64_t grad_bytes = 0;   // bytes of the whole gradient buffer; 0 if frozen
  // The rank along pp that has the same unit, and the parameter in it; -1 = none. Such a unit has a
  // single parameter, which blocks of both ranks use.
  int partner = -1;
  int tied_param = -1;
  // Bytes of this rank's shard in the compute type, while it is gathered; 0 if the master copies
  // have that type.
  int64_t cast_bytes = 0;
  // Bytes of the whole buffer in fp8, in which the unit is gathered; 0 = it is gathered in the
  // compute type.
  int64_t fp8_bytes = 0;

  int64_t gathered_bytes() const { return fp8_bytes > 0 ? fp8_bytes : param_bytes; }
  bool is_tied() const { return trainable && partner >= 0; }
};

// The part of one rank in a pipeline.
struct PipelineSpec {
  PipelineKind kind = PipelineKind::k1F1B;
  int ranks = 1;
  int rank = 0;
  int chunks = 1;
  std::vector<OwnStage> stages;  // stages of this rank; empty = one stage with all blocks
  // Orders from a file, used for training steps instead of `kind`; may be null.
  std::shared_ptr<const GivenOrders> given;
  // As in TrainedBlocks. The trained blocks may lie on other ranks.
  int backward_from = 0;
  int gradient_from = 0;
};

// Returns the part of a rank. first_trained: the first trained block of the model; the number of
// blocks = none.
PipelineSpec pipeline_spec(PipelineKind kind, const Stages& stages, int rank, int first_trained);

// The pipeline of a run, the same for all ranks. Without one there is one stage with all blocks.
struct Pipeline {
  PipelineKind kind = PipelineKind::k1F1B;
  Stages stages;
  std::shared_ptr<const GivenOrders> given = nullptr;  // orders of a file; null = those of `kind`
  int first_trained = 0;  // first block with a trained parameter; the number of blocks = none

  // Returns what a rank along pp needs to know for its schedule.
  PipelineSpec spec_of(int rank) const;
};

// Returns the first block with a trained parameter; the number of blocks if there is none.
int first_trained_block(const YokeModelSummary& model);

// Returns how many sequences of a step a data rank has; 0 if the batch cannot be divided, which the
// host refuses. The degrees must be set.
int64_t sequences_of(const YokePlan& plan);
// Returns how many micro-batches a data rank has in a step; 0 if that is not a number, which the
// host refuses, or if micro_batch is unset.
int64_t micros_of(const YokePlan& plan);

// Which blocks of a rank take part in the backward; both are indices into StepSpec::blocks.
struct TrainedBlocks {
  int backward_from;  // the first block that runs backward; the number of blocks = none
  int gradient_from;  // the first block whose input needs a gradient
};

// All inputs from which the list of a step is built.
struct StepSpec {
  std::vector<UnitSpec> units;
  // For each block of this rank, the units that must be whole while it runs.
  std::vector<std::vector<int>> blocks;
  int shards = 1;                     // 1 = parameters are always whole
  int replicas = 1;                   // copies of the shards
  int micros = 1;                     // micro-batches
  bool reshard_after_forward = true;  // false: gather once per step, reshard after the last use
  Recompute recompute = Recompute::kNone;
  std::vector<RecomputedBlocks> recomputed;  // kUnits only: disjoint, ascending
  Accumulate accumulate = Accumulate::kSharded;
  // Maximum number of unsharded stages of this rank; 0 = no limit. Used only without
  // reshard_after_forward and with Accumulate::kUnsharded.
  int whole_stages = 0;
  // Bytes of the rounded weights that a training step of several micro-batches keeps; 0 = it rounds
  // weights at every use.
  int64_t rounding_bytes = 0;
  int64_t scale_bytes = 0;   // bytes of one number for each parameter that is gathered in fp8
  int64_t update_bytes = 0;  // bytes of the matrices that the update gathers over the shards
  bool reduce_partial_grads = false;  // gradients of tp-replicated parameters are partial sums
  // Sums are added in an order that does not depend on the pipeline: ranks that share a parameter
  // add their gradients of it before the replicas do. Only with one shard.
  bool exact_sums = false;
  bool forward_only = false;
  PipelineSpec pipeline;

  // Returns whether a step of this kind keeps rounded weights.
  bool keeps_roundings(int num_micros, bool only_forward) const {
    return rounding_bytes > 0 && num_micros > 1 && !only_forward;
  }
  std::vector<OwnStage> stages() const;  // the stages of this rank, at least one
  TrainedBlocks trained_blocks() const;  // no block runs backward if forward_only
};

// Returns the action list of a rank. Ranks that differ only in dp_replicate, dp_shard, cp and tp
// have the same list. Every block runs at least once. A unit that no block of this rank uses
// appears in no action.
std::vector<Action> build_schedule(const StepSpec& spec);

}  // namespace yoke::mesh
