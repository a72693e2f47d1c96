// Collectives for tests of a backend alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::testing {

// Ranks as threads of the test, with yoke.collectives/1 over all of them whatever the axes. A
// collective that does not wait runs as late as it can, in wait(): who reads its result or reuses
// its memory before gets wrong numbers. Ranks must wait for their works in the same order. Sums of
// fp32, fp64 and bf16 run in rank order.
class MockWorld {
 public:
  explicit MockWorld(int32_t world_size);
  ~MockWorld();
  // Runs body(rank) on one thread per rank and rethrows the first rank's exception.
  void run(const std::function<void(int32_t rank)>& body);
  const YokeCollectives* collectives(int32_t rank);
  int64_t all_reduces() const;  // calls of rank 0
  // Payload bytes of rank 0 (of the larger side) by "purpose operation", e.g. "reduce all_reduce".
  const std::map<std::string, int64_t>& bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::testing
