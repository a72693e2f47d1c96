#include "core/verify/rank_report.hpp"

#include <gmock/gmock.h>

#include <cmath>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the report of a rank that trained on its samples. The fingerprint of sample s is 1000 +
// s.
RankReport trained_on(const std::vector<int64_t>& samples) {
  RankReport report;
  report.assigned = samples;
  for (const int64_t s : samples) report.assigned_prints.push_back(1000 + s);
  report.received = report.assigned_prints;
  return report;
}

Mesh replicas(int32_t n) {
  return Mesh({1, n, 1, 1, 1});
}

ReplicaMap no_replicas(int32_t ranks) {
  return ReplicaMap(std::vector<std::string>(ranks, to_text(std::vector<PieceKey>{})), 0);
}

std::string violation_text(const std::vector<RankReport>& all,
                           const ReplicaMap& map,
                           const Mesh& mesh,
                           int64_t samples) {
  const auto violation = find_violation(all, map, mesh, {0, samples});
  return violation ? violation->kind + ": " + violation->text : "";
}

TEST(RankReport, FindsNoViolationInDisjointAndCompleteSamples) {
  EXPECT_EQ(
      violation_text({trained_on({0, 1}), trained_on({2, 3})}, no_replicas(2), replicas(2), 4), "");
}

TEST(RankReport, NamesTheRankThatTrainedOnTheSamplesOfAnother) {
  std::vector<RankReport> all{trained_on({0, 1}), trained_on({2, 3}), trained_on({4, 5})};
  all[2].received = all[0].received;
  const auto violation = find_violation(all, no_replicas(3), replicas(3), {0, 6});
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->kind, "samples");
  EXPECT_EQ(violation->rank, 2);
  EXPECT_EQ(
      violation->text,
      "rank 2 (data rank 2) did not train on its samples 4, 5, but on samples of data rank 0");
}

TEST(RankReport, ReportsSamplesThatAreAssignedToNoRank) {
  std::vector<RankReport> all{trained_on({0, 1})};
  all[0].received = {7, 1001};
  EXPECT_THAT(violation_text(all, no_replicas(1), replicas(1), 2),
              HasSubstr("its samples 0, but on data that is assigned to no rank"));
}

TEST(RankReport, ReportsAStepThatDidNotRunTheModel) {
  std::vector<RankReport> all{trained_on({0, 1})};
  all[0].received = {};
  EXPECT_THAT(violation_text(all, no_replicas(1), replicas(1), 2),
              HasSubstr("rank 0 (data rank 0) did not train on its samples 0, 1"));
}

TEST(RankReport, ReportsASampleThatIsAssignedTwiceOrNotAtAll) {
  EXPECT_THAT(
      violation_text({trained_on({0, 1}), trained_on({1, 2})}, no_replicas(2), replicas(2), 3),
      HasSubstr("sample 1 is assigned to data ranks 0 and 1"));
  EXPECT_THAT(violation_text({trained_on({0, 1}), trained_on({2})}, no_replicas(2), replicas(2), 4),
              HasSubstr("sample 3 is assigned to no data rank"));
}

TEST(RankReport, AddsUpSlicesOfSequencesAlongCp) {
  const Mesh cp({1, 1, 1, 2, 1});
  std::vector<RankReport> all{trained_on({0, 1}), trained_on({0, 1})};
  all[0].received = {400, 500};
  all[1].received = {600, 501};
  EXPECT_EQ(violation_text(all, no_replicas(2), cp, 2), "");
  all[1].received = {600, 500};
  EXPECT_THAT(violation_text(all, no_replicas(2), cp, 2),
              HasSubstr("did not train on its samples 1"));
}

TEST(RankReport, ChecksNeitherLaterStagesNorUnreadableInputs) {
  std::vector<RankReport> all{trained_on({0, 1}), trained_on({0, 1})};
  all[1].received = {};
  EXPECT_EQ(violation_text(all, no_replicas(2), Mesh({2, 1, 1, 1, 1}), 2), "");
  all[0].received = {};
  all[0].unreadable = true;
  EXPECT_EQ(violation_text(all, no_replicas(2), Mesh({2, 1, 1, 1, 1}), 2), "");
}

// ---- Replicas ----

// Returns the pieces of three ranks: each has all of "a"; ranks 0 and 1 have one half of "b" each.
std::vector<std::string> pieces() {
  return {to_text({{"a", 0, 4}, {"b", 0, 2}}),
          to_text({{"b", 2, 2}, {"a", 0, 4}}),
          to_text({{"a", 0, 4}})};
}

TEST(ReplicaMap, KeepsThePiecesThatSeveralRanksHold) {
  const ReplicaMap map(pieces(), 1);
  ASSERT_EQ(map.groups().size(), 1u);
  EXPECT_EQ(map.groups()[0].tensor, "a");
  EXPECT_EQ(map.groups()[0].holders.size(), 3u);
  EXPECT_EQ(map.slot(0), -1);
  EXPECT_EQ(map.slot(1), 0);
}

TEST(ReplicaMap, IsEmptyIfEverythingIsCut) {
  EXPECT_TRUE(ReplicaMap({to_text({{"b", 0, 2}}), to_text({{"b", 2, 2}})}, 0).empty());
}

TEST(RankReport, NamesTheRankAndTensorOfAReplicaThatDiffersFromTheMajority) {
  const ReplicaMap map(pieces(), 0);
  std::vector<RankReport> all{trained_on({0}), trained_on({1}), trained_on({2})};
  for (RankReport& e : all) e.replica_hashes = {5};
  EXPECT_EQ(violation_text(all, map, replicas(3), 3), "");
  all[0].replica_hashes = {6};
  const auto violation = find_violation(all, map, replicas(3), {0, 3});
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->rank, 0);
  EXPECT_EQ(violation->tensor, "a");
  EXPECT_EQ(violation->text, "'a' on rank 0 differs from its replica on rank 2");
}

TEST(RankReport, CountsTheOtherTensorsThatDiffer) {
  const std::vector<std::string> both(2, to_text({{"a", 0, 4}, {"b", 0, 2}}));
  std::vector<RankReport> all{trained_on({0}), trained_on({1})};
  all[0].replica_hashes = {5, 6};
  all[1].replica_hashes = {7, 8};
  EXPECT_EQ(violation_text(all, ReplicaMap(both, 0), replicas(2), 2),
            "replicas: 'a' on rank 1 differs from its replica on rank 0; 2 tensors differ in "
            "total");
}

TEST(RankReport, SurvivesBeingSentAsText) {
  RankReport e = trained_on({3, 9});
  e.unreadable = true;
  e.losses = {{1.25, 8, std::nan("")}};
  e.replica_hashes = {UINT64_MAX};
  e.param_hashes = {1, 0};
  const RankReport read = rank_report_from_text(to_text(e));
  EXPECT_EQ(read.assigned, e.assigned);
  EXPECT_EQ(read.assigned_prints, e.assigned_prints);
  EXPECT_EQ(read.received, e.received);
  EXPECT_TRUE(read.unreadable);
  EXPECT_THAT(read.replica_hashes, ElementsAre(UINT64_MAX));
  EXPECT_EQ(read.param_hashes, e.param_hashes);
  EXPECT_EQ(read.losses.at(0).sum, 1.25);
  EXPECT_TRUE(std::isnan(read.losses.at(0).scale));
}

}  // namespace
}  // namespace yoke
