// Collectives for tests of a backend without the host.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "yoke/parallel_backend.h"

namespace yoke::testing {

// Ranks as threads of the test, with yoke.collectives/1. Every communicator covers all ranks,
// regardless of its axes. An asynchronous collective runs as late as possible, in wait(), so a
// backend that reads the result or reuses the memory too early gets wrong numbers. All ranks must
// wait for their operations in the same order. Sums of fp32, fp64 and bf16 are computed in the
// order of the ranks.
class MockWorld {
 public:
  explicit MockWorld(int32_t world_size);
  ~MockWorld();
  // Runs body(rank) on one thread per rank and rethrows the exception of the lowest rank that
  // threw.
  void run(const std::function<void(int32_t rank)>& body);
  const YokeCollectives* collectives(int32_t rank);
  int64_t all_reduces() const;  // calls on rank 0
  // Payload bytes on rank 0, of the larger side, by "purpose operation", e.g. "reduce all_reduce".
  const std::map<std::string, int64_t>& bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace yoke::testing
