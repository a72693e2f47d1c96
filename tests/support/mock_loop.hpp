// The oracle of backend tests on the mock model. It computes the same model, but parameters,
// gradients and optimizer are implemented independently in the simplest way, in fp64 and without
// micro-batches.
#pragma once

#include <ostream>
#include <vector>

#include "tests/support/mock_host.hpp"

namespace yoke::testing {

// A training run on the mock model.
struct MockRun {
  const char* name;
  int32_t kind = YOKE_ADAMW;
  double momentum = 0, weight_decay = 0.1, clip = 1.0;
  int64_t micro_batch = 8;
  bool tied = true;
  int32_t dtype = YOKE_F64;

  static constexpr int kSteps = 12;
  // Returns the learning rate of `step`, which starts at 1.
  double lr_at(int step) const;
  // Sets the optimizer and the dtypes of a plan.
  void configure(MockPlan& plan) const;
};
void PrintTo(const MockRun& run, std::ostream* out);

struct MockTrace {
  std::vector<double> loss;                 // mean over the targets of each step
  std::vector<double> norm;                 // gradient norm of each step, before clipping
  std::vector<std::vector<double>> params;  // trainable and frozen parameters after the last step
};
// Trains without any backend.
MockTrace plain_mock_loop(const MockRun& run);

// Expects relative errors of at most `relative` for losses, 10 times that for norms, and 100 times
// that for parameters.
void expect_close(const MockTrace& trace, const MockTrace& oracle, double relative);

}  // namespace yoke::testing
