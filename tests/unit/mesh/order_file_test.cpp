#include "sdk/mesh/schedule/order_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sdk/mesh/schedule/checker.hpp"
#include "yoke/error.hpp"

namespace yoke::mesh {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_orders(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

// Writes the orders of a schedule down, as PyTorch does.
std::string csv_of(PipelineKind kind, int ranks, int chunks, int micros) {
  std::string text;
  for (int r = 0; r < ranks; ++r) {
    for (const StageStep& s : training_order(kind, r, ranks, chunks, micros)) {
      text += std::to_string(s.stage) + "FBIW"[static_cast<int>(s.op)] + std::to_string(s.micro) +
              ", ,";  // idle
    }
    text += "\n";
  }
  return text;
}

TEST(OrderFile, HasEveryScheduleOfItsOwn) {
  for (const PipelineInfo& info : pipeline_infos()) {
    const int p = 3, m = 6;
    const GivenOrders given = parse_orders(csv_of(info.kind, p, info.chunks, m));
    EXPECT_EQ(given.rank_of, place_stages(info.placement, p, info.chunks)) << info.name;
    EXPECT_EQ(given.micros, m);
    ASSERT_EQ(given.of_rank.size(), 3u);
    for (int r = 0; r < p; ++r)
      EXPECT_EQ(given.of_rank[r], training_order(info.kind, r, p, info.chunks, m)) << info.name;
  }
}

// Returns what the checker finds in the lists of a file, if every stage has one block.
std::vector<ScheduleFault> faults_of(const std::string& text) {
  const auto given = std::make_shared<GivenOrders>(parse_orders(text));
  const Stages stages = cut_by_sizes(given->rank_of, std::vector<int>(given->rank_of.size(), 1));
  std::vector<StepSpec> specs;
  std::vector<std::vector<Action>> lists;
  for (int rank = 0; rank < static_cast<int>(given->of_rank.size()); ++rank) {
    StepSpec spec;
    for (size_t b = 0; b < stages.blocks_of(rank).size(); ++b) {
      spec.units.push_back({true, 128, 128});
      spec.blocks.push_back({static_cast<int>(b)});
    }
    spec.micros = given->micros;
    spec.pipeline = pipeline_spec(PipelineKind::k1F1B, stages, rank, 0);
    spec.pipeline.given = given;
    specs.push_back(spec);
    lists.push_back(build_schedule(spec));
  }
  return check_ranks(specs, lists);
}

// A list of the file is built and checked like any other.
TEST(OrderFile, LeadsToAListThatTheCheckerAccepts) {
  const auto faults = faults_of("0F0,0F1,0B0,0B1\n,1F0,1I0,1F1,1W0,1B1\n");
  EXPECT_TRUE(faults.empty()) << faults[0].text;
}

// Rank 2 receives the outputs of stages 0 and 4 from rank 0, and sends that of stage 1 to rank 3.
// The ranks 0 and 2 send to higher ranks in the same communicator. Rank 2 receives ahead, so it
// sends the output of stage 1 only after that of stage 4 has come, which depends on it.
TEST(OrderFile, WhatWouldHangOnAStreamOfACommunicatorIsFound) {
  const char* const orders =
      "0F0,4F0,4B0,0B0\n"
      "3F0,3B0\n"
      "1F0,5F0,5B0,1B0\n"
      "2F0,2B0\n";
  const auto faults = faults_of(orders);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0].rule, CheckedRule::kDeadlock);
}

TEST(OrderFile, SaysWhatIsWrongAndWhere) {
  EXPECT_THAT(refusal("0F0,0X0\n"), HasSubstr("rank 0, column 1: '0X0' is not an action"));
  EXPECT_THAT(refusal("0F0,F0\n"), HasSubstr("rank 0, column 1: 'F0' is not an action"));
  EXPECT_THAT(refusal("0F0,0B0\n0F1,0B1\n"),
              HasSubstr("rank 1, column 0: 0F1 is here, but stage 0 is also on rank 0"));
  EXPECT_THAT(refusal("0F0,,0F0,0B0\n"), HasSubstr("rank 0, column 2: 0F0 is there twice"));
  EXPECT_THAT(refusal("0B0,0F0\n"), HasSubstr("rank 0, column 0: 0B0 comes too early"));
  EXPECT_THAT(refusal("0F0,0W0,0I0\n"), HasSubstr("rank 0, column 1: 0W0 comes too early"));
  EXPECT_THAT(refusal("0F0,0B0,0I0\n"),
              HasSubstr("column 2: 0I0 comes too early, or after another"));
  EXPECT_THAT(refusal("0F0,0F2\n"), HasSubstr("0F2 has a number that is too large"));
  EXPECT_THAT(refusal("0F0,2000000000F0\n"),
              HasSubstr("column 1: 2000000000F0 has a number that is too large for a file of 2"));
  EXPECT_THAT(refusal("0F0,0B0\n1F1999999999,1B1999999999\n"),
              HasSubstr("rank 1, column 0: 1F1999999999 has a number that is too large"));
  EXPECT_THAT(refusal("0F0,0I0\n"),
              HasSubstr("stage 0, micro-batch 0: actions are missing; there are: FI"));
  EXPECT_THAT(refusal("0F0,0B0\n,,\n1F0,1B0\n"), HasSubstr("rank 1 has no action"));
  EXPECT_THAT(refusal("0F0,0B0\n2F0,2B0\n"),
              HasSubstr("stage 1, micro-batch 0: actions are missing"));
  EXPECT_THAT(refusal("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"),
              HasSubstr("rank 0, column 1: 0B0 waits forever for the backward of stage 1"));
}

TEST(OrderFile, SaysWhetherAStageTakesItsMicroBatchesInOrder) {
  for (const PipelineInfo& info : pipeline_infos())
    EXPECT_EQ(out_of_order(parse_orders(csv_of(info.kind, 3, info.chunks, 6))), "") << info.name;
  EXPECT_EQ(out_of_order(parse_orders("0F1,0F0,0B0,0B1\n")), "0F0");
  EXPECT_EQ(out_of_order(parse_orders("0F0,0F1,0B1,0B0\n")), "0B0");
  EXPECT_EQ(out_of_order(parse_orders("0F0,0F1,0I0,0B1,0W0\n")), "0W0");
  EXPECT_EQ(out_of_order(parse_orders("0F0,0F1,0I1,0I0,0W0,0W1\n")), "0I0");
}

}  // namespace
}  // namespace yoke::mesh
