// How the hub finds the first cause of a failure.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/control/party.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Party;
using testing::party;
using ::testing::StartsWith;

TEST(HubPresence, NamesARankWhoseConnectionCloses) {
  Party p = party(4);
  p.join_all();
  p.wait_with_beats(milliseconds(300), {0, 1, 2, 3});
  p.close(103);
  for (const int r : {0, 1, 2}) {
    EXPECT_THAT(p.cause(r),
                AllOf(StartsWith("rank 3 (node1, process 13) ended without notice"),
                      HasSubstr("in step 7, after 31 collectives")));
  }
}

TEST(HubPresence, TakesTheReportOfASurvivorForAConsequence) {
  Party p = party(4);
  p.join_all();
  p.say(102, MessageType::kFailure, {"1", "all_gather: connection closed", "5"});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(100), {0, 1, 2, 3});
  p.close(103);
  EXPECT_THAT(p.cause(2), StartsWith("rank 3 (node1, process 13) ended"));
}

TEST(HubPresence, ReportsABrokenConnectionBetweenLivingRanks) {
  Party p = party(4);
  p.join_all();
  p.say(102, MessageType::kFailure, {"1", "all_gather: connection closed", "5"});
  p.wait_with_beats(milliseconds(500), {0, 1, 2, 3});
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 2 (node1, process 12): all_gather: connection closed"),
                    HasSubstr("all ranks still answer")));
}

// A rank that waited too long closes its connections, so the others may report before it does.
TEST(HubPresence, NamesTheRankThatIsBehindWhenARankWaitedTooLong) {
  Party p = party(4);
  p.join_all();
  p.wait_with_beats(milliseconds(100), {0, 1, 2, 3});
  p.say(103, MessageType::kBeat, {"7", "20", "0", "0"});
  p.say(101, MessageType::kFailure, {"1", "all_gather: connection closed", "5"});
  p.say(102, MessageType::kFailure, {"2", "all_gather: not finished within 60 s", "5"});
  for (int i = 0; i < 10; ++i) p.wait(milliseconds(50));
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 2 (node1, process 12): all_gather: not finished within 60 s"),
                    HasSubstr("behind: rank 3 (node1, process 13) in step 7, after 20 collectives"),
                    HasSubstr("the others have issued 31")));
  EXPECT_EQ(p.last(100, MessageType::kLost)[1], "1");
}

// The ranks of different pipeline stages issue different collectives.
TEST(HubPresence, ComparesOnlyRanksOfOnePipelineStage) {
  for (const bool one_is_behind : {false, true}) {
    Party p = party(4);
    p.join_all();
    for (const int r : {0, 1}) p.say(100 + r, MessageType::kBeat, {"7", "31", "0", "0"});
    p.say(102, MessageType::kBeat, {"7", "20", "0", "1"});
    p.say(103, MessageType::kBeat, {"7", one_is_behind ? "19" : "20", "0", "1"});
    p.say(102, MessageType::kFailure, {"2", "recv: not finished within 60 s", "5"});
    for (int i = 0; i < 10; ++i) p.wait(milliseconds(50));
    EXPECT_EQ(
        p.cause(0),
        std::string("rank 2 (node1, process 12): recv: not finished within 60 s") +
            (one_is_behind
                 ? "; behind: rank 3 (node1, process 13) in step 7, after 19 collectives; "
                   "the others of their pipeline stage have issued more"
                 : "; the ranks of each pipeline stage have issued equally many collectives"));
  }
}

// Rank 1 is slower than rank 0 of its stage. Ranks 2 and 3 compute more, but no stage is to blame
// for its share of the model.
TEST(HubPresence, TellsRank0WhoIsSlow) {
  Party p = party(4);
  p.join_all();
  const int seconds[] = {1, 3, 5, 5};
  for (int step = 0; step <= 25; ++step) {
    for (int r = 0; r < 4; ++r) {
      p.say(100 + r,
            MessageType::kBeat,
            {concat(step + 1), "1", concat(step * seconds[r] * 1000000), r < 2 ? "0" : "1"});
    }
  }
  EXPECT_EQ(p.last(100, MessageType::kNote),
            (std::vector<std::string>{"0", kStragglerNote, "1 3 6"}));
  EXPECT_EQ(p.count(101, MessageType::kNote), 0);
}

// A machine to which packets get lost takes the hub for lost and closes its connections, which its
// peers report. It is the silent one, not they.
TEST(HubPresence, WaitsForARankThatHasMissedBeats) {
  Party p = party(4);
  p.join_all();
  p.wait_with_beats(milliseconds(1200), {0, 1});
  p.say(101, MessageType::kFailure, {"1", "all_gather: connection reset", "5"});
  p.wait_with_beats(milliseconds(600), {0, 1});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(600), {0, 1});
  EXPECT_THAT(p.cause(0),
              StartsWith("rank 2 (node1, process 12), rank 3 (node1, process 13) have"));
}

TEST(HubPresence, PassesOnTheErrorOfARank) {
  Party p = party(2);
  p.join_all();
  p.say(101, MessageType::kFailure, {"0", "the loss is not finite", "5"});
  EXPECT_EQ(p.cause(0), "rank 1 (node0, process 11) failed: the loss is not finite");
}

TEST(HubPresence, NamesASilentRankInTime) {
  Party p = party(3);
  p.join_all();
  p.wait_with_beats(milliseconds(1950), {0, 2});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(200), {0, 2});
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 1 (node0, process 11) has not answered for 2"),
                    HasSubstr("rank 0 (node0)"),
                    Not(HasSubstr("rank 2"))));
}

TEST(HubPresence, NamesNoRankThatAnswersIfTheLimitIsShort) {
  HubOptions options;
  options.lost_after = milliseconds(400);
  Party p = party(3, options);
  p.join_all();
  p.wait_with_beats(milliseconds(600), {0, 2});
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 1 (node0, process 11) has not answered for 0."),
                    Not(HasSubstr("rank 2"))));
}

TEST(HubPresence, NamesAllRanksOfASilentMachine) {
  Party p = party(4);
  p.join_all();
  p.wait_with_beats(milliseconds(300), {0, 1, 2, 3});
  p.wait_with_beats(milliseconds(200), {0, 1, 2});  // the last beats of two ranks differ
  p.wait_with_beats(milliseconds(2300), {0, 1});
  EXPECT_THAT(
      p.cause(0),
      StartsWith("rank 2 (node1, process 12), rank 3 (node1, process 13) have not answered"));
}

TEST(HubPresence, NeverTakesRanksForLostWithoutALimit) {
  HubOptions options;
  options.lost_after = milliseconds(0);
  Party p = party(2, options);
  p.join_all();
  p.wait_with_beats(milliseconds(60'000), {0});
  EXPECT_EQ(p.cause(0), "");
}

// The process of rank 0 was stopped for a minute, and the hub with it.
TEST(HubPresence, DoesNotAccuseOthersOfItsOwnSilence) {
  Party p = party(2);
  p.join_all();
  p.now += std::chrono::minutes(1);
  p.hub->tick(p.now);
  p.wait_with_beats(milliseconds(3000), {0, 1});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(3000), {0});
  EXPECT_THAT(p.cause(0), StartsWith("rank 1"));
}

TEST(HubPresence, LetsRanksLeaveInOrder) {
  Party p = party(2);
  p.join_all();
  p.say(101, MessageType::kGoodbye, {});
  p.close(101);
  p.wait_with_beats(milliseconds(3000), {0});
  EXPECT_EQ(p.cause(0), "");
  EXPECT_FALSE(p.hub->finished());
  p.say(100, MessageType::kGoodbye, {});
  EXPECT_TRUE(p.hub->finished());
}

TEST(HubPresence, SendsBeatsToItsMembers) {
  Party p = party(2);
  p.join_all();
  p.wait_with_beats(milliseconds(1000), {0, 1});
  EXPECT_GE(p.count(101, MessageType::kBeat), 3);
  EXPECT_LE(p.count(101, MessageType::kBeat), 5);
}

// Every order of: a rank dies, two survivors report a lost connection, a beat of each survivor. In
// each of them the dead rank is named, exactly once, to all that live.
TEST(HubPresence, FindsTheFirstCauseInEveryOrderOfEvents) {
  std::vector<int> order{0, 1, 2, 3, 4};
  do {
    for (int dead = 0; dead < 3; ++dead) {
      Party p = party(3);
      p.join_all();
      std::vector<int> living;
      for (int r = 0; r < 3; ++r) {
        if (r != dead) living.push_back(r);
      }
      for (const int event : order) {
        if (event == 0) p.close(100 + dead);
        if (event == 1 || event == 2)
          p.say(100 + living[event - 1], MessageType::kFailure, {"1", "connection closed", "5"});
        if (event >= 3) p.say(100 + living[event - 3], MessageType::kBeat, {"7", "31", "0", "0"});
        p.wait(milliseconds(50));
      }
      p.wait_with_beats(milliseconds(3000), living);
      for (const int r : living) {
        EXPECT_THAT(p.cause(r), StartsWith(concat("rank ", dead, " (")));
        EXPECT_EQ(p.count(100 + r, MessageType::kLost), 1);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

}  // namespace
}  // namespace yoke
