#include "core/run/run_table.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

StageCosts stage(int64_t activations, int64_t optimizer) {
  StageCosts costs;
  costs.worst.param_bytes = 2 << 20;
  costs.worst.optimizer_bytes = optimizer;
  costs.worst.activation_bytes = activations;
  return costs;
}

TEST(UsedMemoryText, NamesThePredictionOfTheLargestStage) {
  const std::vector<StageCosts> stages{stage(1 << 20, 0), stage(3 << 20, 0)};
  EXPECT_EQ(used_memory_text(stages, 6 << 20, true),
            "memory: predicted 5.0 MiB a rank, measured 6.0 MiB (tensors)");
  EXPECT_EQ(used_memory_text({stage(3 << 20, -1)}, 6 << 20, false),
            "memory: predicted at least 5.0 MiB a rank, measured 6.0 MiB (growth of the process)");
}

}  // namespace
}  // namespace yoke
