#include "core/run/planned_config.hpp"

#include <gtest/gtest.h>

#include <map>

#include "core/run/plan.hpp"

namespace yoke {
namespace {

TEST(WithPlan, FillsOnlyWhatTheRunLeavesUnset) {
  const LoadedConfig loaded = load_config(
      std::nullopt, {"parallel_backend=x", "data.path=t", "tp_degree=2"}, {}, [](const auto&) {
        return std::vector<std::string>{"x"};
      });
  RunPlan p(loaded.run, 4);
  p.plan().degree[YOKE_DP_SHARD] = 2;
  ASSERT_TRUE(p.complete(2).empty());
  std::map<std::string, std::string> texts;
  for (const Resolved& item : with_plan(loaded, p.plan(), "x").values)
    texts[item.key] = item.value + " " + item.origin;
  EXPECT_EQ(texts["tp_degree"], "2 command line");
  EXPECT_EQ(texts["dp_shards"], "2 chosen by x");
  EXPECT_EQ(texts["pp_degree"], "1 chosen by x");
  EXPECT_EQ(texts["train.micro_batch"], "2 chosen by x");
  EXPECT_EQ(texts["precision.reduce"], "\"fp32\" chosen by x");
  EXPECT_EQ(texts["model.from"], "\"\" default");
}

}  // namespace
}  // namespace yoke
