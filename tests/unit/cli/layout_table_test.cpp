#include "core/cli/layout_table.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

Json layout(int dp, int tp) {
  return {{"pp_degree", 1}, {"dp_degree", dp}, {"tp_degree", tp}};
}

Json possible(int dp, int tp, const Json& memory, const Json& traffic, const Json& idle) {
  return {{"degrees", layout(dp, tp)},
          {"micro_batch", 4},
          {"accumulation", 2},
          {"memory_bytes", memory},
          {"traffic_bytes", traffic},
          {"all_traffic", tp == 1},
          {"idle", idle}};
}

Json refused(int dp, int tp, const char* reason) {
  return {{"degrees", layout(dp, tp)}, {"reason", reason}};
}

TEST(LayoutTable, HasTheLeastMemoryFirstAndUnknownMemoryLast) {
  const Json json = {{"possible",
                      {possible(2, 2, nullptr, nullptr, nullptr),
                       possible(4, 1, 3 << 20, 2048, 0.125),
                       possible(1, 4, 2 << 20, 4096, 0.0),
                       possible(1, 1, 2 << 20, 0, 0.0)}},
                     {"refused", Json::array()}};
  EXPECT_EQ(
      layout_table(json),
      "layout                   micro-batches x sequences  memory of a rank  traffic of a rank  "
      "idle\n"
      "one rank                 2 x 4                      2.0 MiB           0 B                "
      "0.0 %\n"
      "tp_degree=4              2 x 4                      2.0 MiB           at least 4.0 KiB   "
      "0.0 %\n"
      "dp_degree=4              2 x 4                      3.0 MiB           2.0 KiB            "
      "12.5 %\n"
      "dp_degree=2 tp_degree=2  2 x 4                      unknown           unknown            "
      "unknown\n");
}

TEST(LayoutTable, SaysThatTrafficIsUnknownIfNothingIsKnown) {
  const Json json = {{"possible", {possible(1, 2, 1024, 0, 0.0)}}, {"refused", Json::array()}};
  EXPECT_NE(layout_table(json).find("1.0 KiB           unknown"), std::string::npos)
      << layout_table(json);
}

TEST(LayoutTable, HasEveryReasonOnce) {
  const Json json = {
      {"possible", Json::array()},
      {"refused", {refused(1, 8, "too wide"), refused(8, 1, "no"), refused(2, 8, "too wide")}}};
  EXPECT_EQ(layout_table(json),
            "Not possible: 3 of 3 layouts\n\n"
            "tp_degree=8 and 1 other:\n  too wide\n"
            "dp_degree=8:\n  no\n");
}

}  // namespace
}  // namespace yoke
