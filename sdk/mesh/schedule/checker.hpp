// Checks a step before it runs: walks the lists of all ranks and reports what is wrong with them.
// It relies only on the meaning of the actions, not on the code that builds the lists, so it does
// not repeat mistakes of that code. Pure; no LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sdk/mesh/schedule/schedule.hpp"

namespace yoke::mesh {

enum class CheckedRule : uint8_t {
  kWhole,          // a block runs only while its units are whole
  kScales,         // the scales of fp8 gathers are reduced once per step, before these gathers
  kUnshard,        // Unshard, WaitUnshard, Reshard alternate; nothing stays whole at the end
  kCompute,        // every block runs forward and backward once per micro-batch, in order
  kMessage,        // every message between stages is sent, received and waited for once, in order
  kGradient,       // gradients are reduced once, when complete, and not changed in flight
  kAllReduceGrad,  // gradient shards are summed over the replicas once per step, when final
  kTied,           // tied units of two pipeline ranks exchange their gradients once, when final
  kPartialGrads,   // gradients of tp-replicated parameters are summed over tp once, when final
  kEnd,            // the list ends with ReduceScalars and Update, or with ReduceLoss
  kBytes,          // the bytes of an action are those of its unit
  kPairing,        // the ranks of a communicator issue the same collectives in the same order
  kDeadlock,       // no rank waits for a collective that a peer cannot reach
};

struct ScheduleFault {
  int rank;
  int action;  // index in the rank's list; the size of the list stands for its end
  CheckedRule rule;
  std::string text;
};

// Checks one rank's list alone. Returns at most one fault, because any others would only follow
// from the first.
std::vector<ScheduleFault> check_rank(const StepSpec& spec,
                                      const std::vector<Action>& list,
                                      int rank = 0);

// Checks the lists of all ranks, each alone and all together. specs: one for each rank of pp. The
// rank of a list is ((pp * replicas + replica) * shards + shard) * tp + t, where tp follows from
// the number of lists. If ranks with the same coordinate along pp have equal lists, one list for
// each coordinate is enough. As with NCCL, the messages of a rank in a communicator
// (message_comm()) are carried out one after the other, in the order in which the rank issues them,
// and each when both ranks have come to it.
std::vector<ScheduleFault> check_ranks(const std::vector<StepSpec>& specs,
                                       const std::vector<std::vector<Action>>& lists);

}  // namespace yoke::mesh
