// Gathers the parameters of a bucket from the ranks that have updated their shards of it.
#pragma once

#include <vector>

#include "plugins/megatron_compat/comms.hpp"
#include "plugins/megatron_compat/layout.hpp"
#include "sdk/compat/parameters.hpp"

namespace yoke::megatron_compat {

// After invalidate() the buckets hold new values only in the shards of their owners. Either all of
// them are gathered at once, or each one before the first block that reads it. One thread at a
// time; everything but the constructor and invalidate() is collective.
class Gather {
 public:
  // Everything must outlive the object.
  Gather(const YokeModelSummary& model,
         const Layout& layout,
         const compat::Parameters& parameters,
         const Comms& comms);

  void invalidate();
  void all();
  // Makes the parameters of a block valid, and starts the gather of the bucket that later blocks
  // need next.
  void before(uint64_t block);

 private:
  enum class State { kValid, kOld, kInFlight };
  void start(int64_t b);
  void complete(int64_t b);

  const Layout& layout_;
  const compat::Parameters& parameters_;
  const Comms& comms_;
  std::vector<std::vector<int64_t>> of_block_;  // buckets of each block, in descending order
  std::vector<State> states_;                   // state of each bucket
  std::vector<Work> works_;                     // gather of each bucket
};

}  // namespace yoke::megatron_compat
