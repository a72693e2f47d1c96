// A training step of ptd with the Llama `tiny` whose allocations are counted, and the forecast of
// its peak.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "yoke/parallel_backend.h"

namespace yoke::ptd::testing {

struct CountedLayout {
  const char* name;
  int pp = 1, shards = 1, micros = 8, sequences = 1;
  int32_t dtype = YOKE_F32;
  std::map<std::string, std::string> options{};
};

// Bytes that live on a rank at the peak of a step.
struct CountedPeak {
  int64_t forecast = 0, counted = 0;
  double ratio() const { return static_cast<double>(forecast) / static_cast<double>(counted); }
};

// Makes LibTorch's allocations countable while it exists, and lets LibTorch use one thread for each
// rank. Only one may exist at a time, and no other thread may allocate tensors while it is made or
// destroyed.
class CountedAllocations {
 public:
  CountedAllocations();
  ~CountedAllocations();
  CountedAllocations(const CountedAllocations&) = delete;

 private:
  const int threads_;  // before
};

// Returns the peaks of all ranks in the second step of a run. Ranks are threads, and each counts
// what it has allocated. Requires CountedAllocations.
std::vector<CountedPeak> peaks_of(const CountedLayout& layout);

}  // namespace yoke::ptd::testing
