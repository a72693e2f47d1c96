// Proves a step before it runs: walks the lists of all ranks and reports whatever is wrong with
// them. Knows the meaning of the actions, not how the lists were made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ptd/schedule/schedule.hpp"

namespace yoke::ptd {

enum class Rule : uint8_t {
  kWhole,     // a block runs only while its units are whole
  kUnshard,   // Unshard, WaitUnshard, Reshard alternate; nothing stays whole at the end
  kCompute,   // every block runs forward and backward once per micro-batch, in order, with what it
              // needs
  kGradient,  // gradients are reduced once, when complete, and not touched on their way
  kAllReduceGrad,  // gradient shards are summed over the replicas once per step, when final
  kPartialGrads,   // gradients of what tp does not cut are summed over tp once, when final
  kEnd,    // the list ends with ReduceScalars and Update, or with ReduceLoss, after everything else
  kBytes,  // an action's bytes are those of its unit
  kPairing,   // the ranks of a communicator issue the same collectives in the same order
  kDeadlock,  // no rank waits for a collective that a peer cannot reach
};

struct Finding {
  int rank;
  int action;  // index in the rank's list; its size = the end of the list
  Rule rule;
  std::string text;
};

// Findings about one rank's list alone; stops at the first one, since what follows would only
// repeat it.
std::vector<Finding> check_rank(const StepSpec& spec,
                                const std::vector<Action>& list,
                                int rank = 0);

// Findings about the lists of all ranks, rank = replica * shards + shard: each alone, and together.
std::vector<Finding> check_ranks(const StepSpec& spec,
                                 const std::vector<std::vector<Action>>& lists);

// Bytes of whole parameters and whole gradients that exist while each action of a correct list
// runs: what a step needs beside shards and activations.
std::vector<int64_t> memory_bytes(const StepSpec& spec, const std::vector<Action>& list);
int64_t peak_bytes(const StepSpec& spec, const std::vector<Action>& list);

}  // namespace yoke::ptd
