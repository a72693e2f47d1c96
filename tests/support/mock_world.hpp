// Collectives for tests of a backend alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "yoke/parallel_backend.h"

namespace yoke::testing {

// Ranks as threads of the test: just enough of yoke.collectives/1 (comm, size, rank, all_reduce
// with SUM, barrier; blocking only). The other functions answer UNIMPLEMENTED.
class MockWorld {
 public:
  explicit MockWorld(int32_t world_size);
  ~MockWorld();
  // Runs body(rank) on one thread per rank and rethrows the first rank's exception.
  void run(const std::function<void(int32_t rank)>& body);
  const YokeCollectives* collectives(int32_t rank);
  int64_t all_reduces() const;  // calls of rank 0

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::testing
