// The communicators of a rank of ptd.
#pragma once

#include "plugins/ptd/mesh.hpp"
#include "sdk/mesh/collectives/comm.hpp"

namespace yoke::ptd {

// Those of ModelComms, and those of data parallelism, which actions of the schedule use
// (CommPurpose). A reduction never waits in the queue of a gather. Parameters are sharded over
// dp_shard and, with ptd.shard_over_cp, over cp.
struct Comms : ModelComms {
  Comm unshard;          // ranks with the shards of one replica
  Comm reduce_grad;      // the same ranks as unshard
  Comm all_reduce_grad;  // ranks that hold the same shard
  Comm world;            // all ranks

  // Makes the communicators that have more than one rank. stages_return: a pipeline passes outputs
  // to lower ranks as well. Collective over the world. Throws Error(FAILED_PRECONDITION) if the
  // host has no collectives.
  static Comms make(const YokePlan& plan,
                    bool shard_over_cp,
                    bool stages_return,
                    const YokeHost& host);
};

}  // namespace yoke::ptd
