// Training steps of ptd with the Llama `tiny`, or another small model: their allocations and
// launches are counted, and the forecast of the peak is compared with the former.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/ptd/rig.hpp"
#include "yoke/parallel_backend.h"

namespace yoke::ptd::testing {

struct CountedLayout {
  const char* name;
  int pp = 1, shards = 1, cp = 1, tp = 1, micros = 8, sequences = 1;
  int32_t dtype = YOKE_F32;
  std::map<std::string, std::string> options{};
  const char* model = nullptr;  // text of a config.json; nullptr = the Llama `tiny`
  const char* blocks = "layer";
  const char* fp8_recipe = nullptr;  // nullptr = products are not in fp8

  int ranks_of_stage() const { return shards * cp * tp; }
};

struct CountedBytes {
  int64_t forecast = 0, counted = 0;
  double ratio() const { return static_cast<double>(forecast) / static_cast<double>(counted); }
};
// The bytes of one rank.
struct CountedPeak : CountedBytes {  // those that live at the peak of a step; forecast 0 = unknown
  CountedBytes kept;      // those that its forwards of a micro-batch leave behind, a mean
  int64_t roundings = 0;  // forecast of rounded weights, which the first forwards keep
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

// Makes the first step of a layout of one rank and then calls `observe`, on the thread of the rank,
// with a function that makes the second step.
using MakeStep = std::function<YokeStepResult()>;
void observe_second_step(const CountedLayout& layout,
                         const std::function<void(const MakeStep& step)>& observe);

// Trains a layout of one rank with random tokens. on_device: the host has a stream and the kernels
// of a device; requires an EmulatedCuda. eval_loss and counts are not set.
Outcome train_counted(const CountedLayout& layout, int steps, bool on_device);

}  // namespace yoke::ptd::testing
