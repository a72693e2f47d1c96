// The orders in which the ranks of a pipeline compute their stages. Pure; no LibTorch.
//
// Notation: p ranks, v chunks (stages of one rank), m micro-batches. The idle time of a step is
// given for stages of equal cost, F for a forward, I and W for the two parts of a backward
// (gradients of the input and of the weights), of one micro-batch on a whole rank. "In flight" is
// the largest number of micro-batches whose activations a rank keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sdk/mesh/schedule/stages.hpp"

namespace yoke::mesh {

enum class PipelineKind : uint8_t {
  kGpipe,  // all forwards, then all backwards. Idle (p-1)(F+I), m in flight
  k1F1B,   // forwards and backwards in turn (PipeDream-flush). Idle (p-1)(F+I), p in flight
  // 1F1B over v chunks, in groups of p micro-batches (Megatron-LM). Idle (p-1)(F+I)/v,
  // p + (p-1)/v in flight
  kInterleaved,
  kLoopedBfs,  // GPipe over v chunks: a whole chunk at a time. Idle (p-1)(F+I)/v, m in flight
  // Zero bubble: the gradients of weights fill what would be idle time.
  kZbH1,           // 1F1B with W delayed. Idle (p-1)(F+I-W), p in flight
  kZbInterleaved,  // the same over v chunks. Idle (p-1)(F+I-W)/v, p in flight
  // Over StagePlacement::kVee. The idle times hold if F = I = W = 1.
  kZbV,        // the handcrafted schedule of arXiv 2401.10241. Idle (p-1)/2, p in flight
  kVHalf,      // half the memory (arXiv 2405.15362). p/2 + 1 in flight
  kVMin,       // the least memory (arXiv 2405.15362). p/3 + 1 in flight
  kDualPipeV,  // DeepSeek's; requires m >= 2 p. Idle (p-1)/2, p + 1/2 in flight
};

enum class StageOp : uint8_t {
  kForward,
  kBackward,        // both parts
  kBackwardInput,   // gradients of the stage's input
  kBackwardWeight,  // gradients of its weights, after kBackwardInput
};

struct StageStep {
  StageOp op;
  int stage;
  int micro;

  bool operator==(const StageStep&) const = default;
};

// What is known about a kind of pipeline.
struct PipelineInfo {
  PipelineKind kind;
  const char* name;          // name in messages and options
  StagePlacement placement;  // where its stages lie
  int chunks;                // stages of a rank if the user gives none
  bool any_chunks;           // whether the user may choose another number of chunks, 2 or more
  // Whether each message is received soon after it was sent. False if a rank computes all
  // micro-batches of a stage first: messages for its next stage wait until it gets there.
  bool in_step;
};
const PipelineInfo& info_of(PipelineKind kind);
const std::vector<PipelineInfo>& pipeline_infos();

// Returns why a kind of pipeline cannot run m micro-batches on p ranks, or "".
std::string micros_fault(PipelineKind kind, int ranks, int micros);

// Returns the order of one rank in a training step. Each stage of the rank runs forward and
// backward once for each micro-batch; the backwards of a stage run in the order of the
// micro-batches, so that gradients are added up in the same order as on a single rank.
// micros_fault() must be "".
std::vector<StageStep> training_order(
    PipelineKind kind, int rank, int ranks, int chunks, int micros);

// Returns the order of one rank, which has these stages, in an evaluation: a whole stage at a time.
std::vector<StageStep> evaluation_order(const std::vector<OwnStage>& stages, int micros);

}  // namespace yoke::mesh
