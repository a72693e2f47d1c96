#include "core/verify/rank_report.hpp"

#include <gmock/gmock.h>

#include <cmath>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A rank that trained on what it was dealt; the fingerprint of sample s is 1000 + s.
RankReport dealt(const std::vector<int64_t>& samples) {
  RankReport e;
  e.dealt = samples;
  for (const int64_t s : samples) e.dealt_prints.push_back(1000 + s);
  e.fed = e.dealt_prints;
  return e;
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

TEST(RankReport, OfDisjointAndCompleteDataHasNoViolation) {
  EXPECT_EQ(violation_text({dealt({0, 1}), dealt({2, 3})}, no_replicas(2), replicas(2), 4), "");
}

TEST(RankReport, NamesTheRankThatTrainedOnTheSamplesOfAnother) {
  std::vector<RankReport> all{dealt({0, 1}), dealt({2, 3}), dealt({4, 5})};
  all[2].fed = all[0].fed;
  const auto violation = find_violation(all, no_replicas(3), replicas(3), {0, 6});
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->kind, "samples");
  EXPECT_EQ(violation->rank, 2);
  EXPECT_EQ(
      violation->text,
      "rank 2 (data rank 2) did not train on its samples 4, 5, but on samples of data rank 0");
}

TEST(RankReport, TellsDataThatNobodyWasDealt) {
  std::vector<RankReport> all{dealt({0, 1})};
  all[0].fed = {7, 1001};
  EXPECT_THAT(violation_text(all, no_replicas(1), replicas(1), 2),
              HasSubstr("its samples 0, but on data that nobody was dealt"));
}

TEST(RankReport, TellsAStepThatDidNotRunTheModel) {
  std::vector<RankReport> all{dealt({0, 1})};
  all[0].fed = {};
  EXPECT_THAT(violation_text(all, no_replicas(1), replicas(1), 2),
              HasSubstr("rank 0 (data rank 0) did not train on its samples 0, 1"));
}

TEST(RankReport, TellsASampleThatIsDealtTwiceOrNotAtAll) {
  EXPECT_THAT(violation_text({dealt({0, 1}), dealt({1, 2})}, no_replicas(2), replicas(2), 3),
              HasSubstr("sample 1 was dealt to data ranks 0 and 1"));
  EXPECT_THAT(violation_text({dealt({0, 1}), dealt({2})}, no_replicas(2), replicas(2), 4),
              HasSubstr("sample 3 was dealt to no data rank"));
}

TEST(RankReport, AddsUpSlicesOfSequencesAlongCp) {
  const Mesh cp({1, 1, 1, 2, 1});
  std::vector<RankReport> all{dealt({0, 1}), dealt({0, 1})};
  all[0].fed = {400, 500};
  all[1].fed = {600, 501};
  EXPECT_EQ(violation_text(all, no_replicas(2), cp, 2), "");
  all[1].fed = {600, 500};
  EXPECT_THAT(violation_text(all, no_replicas(2), cp, 2), HasSubstr("did not train on its samples 1"));
}

TEST(RankReport, DoesNotAskLaterStagesNorThoseThatCannotBeSeen) {
  std::vector<RankReport> all{dealt({0, 1}), dealt({0, 1})};
  all[1].fed = {};
  EXPECT_EQ(violation_text(all, no_replicas(2), Mesh({2, 1, 1, 1, 1}), 2), "");
  all[0].fed = {};
  all[0].blind = true;
  EXPECT_EQ(violation_text(all, no_replicas(2), Mesh({2, 1, 1, 1, 1}), 2), "");
}

// ---- replicas

// Rank 0 and 1 hold "a" whole; "b" is cut; rank 2 holds "a" too.
std::vector<std::string> pieces() {
  return {to_text({{"a", 0, 4}, {"b", 0, 2}}),
          to_text({{"b", 2, 2}, {"a", 0, 4}}),
          to_text({{"a", 0, 4}})};
}

TEST(ReplicaMap, KeepsWhatSeveralRanksHold) {
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

TEST(RankReport, NamesTheRankAndTensorOfAReplicaThatDiffersFromMost) {
  const ReplicaMap map(pieces(), 0);
  std::vector<RankReport> all{dealt({0}), dealt({1}), dealt({2})};
  for (RankReport& e : all) e.shared = {5};
  EXPECT_EQ(violation_text(all, map, replicas(3), 3), "");
  all[0].shared = {6};
  const auto violation = find_violation(all, map, replicas(3), {0, 3});
  ASSERT_TRUE(violation);
  EXPECT_EQ(violation->rank, 0);
  EXPECT_EQ(violation->tensor, "a");
  EXPECT_EQ(violation->text, "'a' has other bits on rank 0 than its replica on rank 2");
}

TEST(RankReport, CountsTheOtherTensorsThatDiffer) {
  const std::vector<std::string> both(2, to_text({{"a", 0, 4}, {"b", 0, 2}}));
  std::vector<RankReport> all{dealt({0}), dealt({1})};
  all[0].shared = {5, 6};
  all[1].shared = {7, 8};
  EXPECT_EQ(violation_text(all, ReplicaMap(both, 0), replicas(2), 2),
            "replicas: 'a' has other bits on rank 1 than its replica on rank 0; 2 tensors differ in "
            "all");
}

TEST(RankReport, SurvivesTheWayBetweenRanks) {
  RankReport e = dealt({3, 9});
  e.blind = true;
  e.losses = {{1.25, 8, std::nan("")}};
  e.shared = {UINT64_MAX};
  e.sums = {1, 0};
  const RankReport read = rank_report_from_text(to_text(e));
  EXPECT_EQ(read.dealt, e.dealt);
  EXPECT_EQ(read.dealt_prints, e.dealt_prints);
  EXPECT_EQ(read.fed, e.fed);
  EXPECT_TRUE(read.blind);
  EXPECT_THAT(read.shared, ElementsAre(UINT64_MAX));
  EXPECT_EQ(read.sums, e.sums);
  EXPECT_EQ(read.losses.at(0).sum, 1.25);
  EXPECT_TRUE(std::isnan(read.losses.at(0).scale));
}

}  // namespace
}  // namespace yoke
