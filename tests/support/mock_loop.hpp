// The oracle of backend tests on the mock model: the same mathematics, but parameters, gradients
// and optimizer written down once more in the simplest way, in fp64 and without micro-batches.
#pragma once

#include <ostream>
#include <vector>

#include "tests/support/mock_host.hpp"

namespace yoke::testing {

struct MockRun {
  const char* name;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 1.0;
  int64_t micro_batch = 8;
  bool tied = true;
  int32_t dtype = YOKE_F64;

  static constexpr int kSteps = 12;
  double lr_at(int step) const;
  void configure(MockPlan& plan) const;
};
void PrintTo(const MockRun& run, std::ostream* out);

struct MockTrace {
  std::vector<double> loss, norm;           // per step: mean over targets; before clipping
  std::vector<std::vector<double>> params;  // trainable and frozen, at the end
};
MockTrace plain_mock_loop(const MockRun& run);

// Losses within `relative`, norms within 10 and parameters within 100 times as much.
void expect_close(const MockTrace& trace, const MockTrace& oracle, double relative);

}  // namespace yoke::testing
