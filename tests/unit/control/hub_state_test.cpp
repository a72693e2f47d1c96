// How the hub lets members in, and what it keeps for them.
#include "core/control/hub_state.hpp"

#include <gmock/gmock.h>

#include "tests/unit/control/party.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Party;
using testing::party;
using ::testing::StartsWith;

TEST(HubState, WelcomesAllRanksWithTheirAddresses) {
  Party p = party(3);
  p.join(2);
  p.join(0);
  EXPECT_EQ(p.count(100, MessageType::kWelcome), 0);
  EXPECT_THAT(p.hub->missing(),
              StartsWith("rank 1 of 3 is missing; present: 0 (node0, process 10), 2 (node1"));
  p.join(1);
  const std::vector<std::string> table{
      "node0", "10", "10.0.0.1", "node0", "11", "10.0.0.1", "node1", "12", "10.0.0.2"};
  for (int r = 0; r < 3; ++r) EXPECT_EQ(p.last(100 + r, MessageType::kWelcome), table);
  EXPECT_EQ(p.hub->missing(), "");
}

// A machine whose own name is 127.0.1.1 connects its local ranks through the loopback address.
TEST(HubState, GivesLocalRanksTheAddressThatOthersUse) {
  Party p = party(2);
  p.greet(100);
  p.say(100, MessageType::kJoin, {"", "0", "2", "node0", "10", "127.0.0.1", pack_introduction({})});
  p.greet(101);
  p.say(101, MessageType::kJoin, {"", "1", "2", "node1", "11", "10.0.0.2", pack_introduction({})});
  EXPECT_EQ(p.last(101, MessageType::kWelcome)[2], "10.0.0.1") << "the near end of rank 1's";
}

TEST(HubState, RefusesRanksThatDifferByKeyValueAndHost) {
  Party p = party(4);
  for (int r = 0; r < 4; ++r) {
    p.join(r, "", {{"seed", "1", ""}, {"train.lr", r < 2 ? "0.1" : "0.2", "command line"}});
  }
  for (int r = 0; r < 4; ++r) {
    ASSERT_EQ(p.count(100 + r, MessageType::kRefused), 1);
    EXPECT_EQ(p.last(100 + r, MessageType::kRefused)[0],
              "the ranks do not run the same job:\n  train.lr: rank 0 (node0) has 0.1 (command "
              "line), ranks 2, 3 (node1) have 0.2 (command line)");
    EXPECT_EQ(p.count(100 + r, MessageType::kWelcome), 0);
  }
  EXPECT_TRUE(p.hub->finished());
}

TEST(HubState, TellsEverybodyWhyOneRankCannotTakePart) {
  Party p = party(3);
  p.join(0);
  p.greet(50);
  p.say(50, MessageType::kDecline, {"another job", "2", "3", "node1", "12", "no such data"});
  EXPECT_EQ(p.count(100, MessageType::kRefused), 0) << "a rank of another run";
  p.close(50);
  p.greet(51);
  p.say(51, MessageType::kDecline, {"", "2", "3", "node1", "12", "no such data"});
  EXPECT_THAT(p.last(100, MessageType::kRefused)[0],
              HasSubstr("rank 2 (node1, process 12) cannot take part: no such data"));
  EXPECT_FALSE(p.hub->finished()) << "rank 1 does not know yet";
  p.join(1);
  EXPECT_THAT(p.last(101, MessageType::kRefused)[0], HasSubstr("no such data"));
  EXPECT_TRUE(p.hub->finished());
}

// The connection of a member that says something malformed is closed.
TEST(HubState, KeepsTheRankOfAMemberThatCouldNotJoinFree) {
  Party p = party(2);
  p.join(0);
  p.greet(50);
  const std::vector<std::string> malformed{"", "1", "2", "node0", "11", "10.0.0.1", "garbage"};
  EXPECT_THROW(p.say(50, MessageType::kJoin, malformed), Error);
  p.close(50);
  p.join(1);
  EXPECT_EQ(p.count(101, MessageType::kRefused), 0);
  EXPECT_EQ(p.count(101, MessageType::kWelcome), 1);
}

// Ranks of a larger world may not stand for those of this one.
TEST(HubState, StaysUntilItsOwnRanksKnowTheReason) {
  Party p = party(2);
  p.join(3, "", {}, 50, 8);
  for (int rank = 4; rank < 8; ++rank) p.join(rank, "", {}, 50 + rank, 8);
  EXPECT_FALSE(p.hub->finished());
  p.join(1);
  EXPECT_TRUE(p.hub->finished());
}

TEST(HubState, RefusesASecondProcessWithTheSameRank) {
  Party p = party(2);
  p.join(1);
  p.join(1, "", {}, 77);
  EXPECT_THAT(p.last(77, MessageType::kRefused)[0],
              AllOf(HasSubstr("rank 1 is taken by node0, process 11"), HasSubstr("also given")));
  EXPECT_THAT(p.ended, ::testing::Contains(77));
  p.close(77);
  p.join(0);
  EXPECT_EQ(p.count(101, MessageType::kWelcome), 1) << "the first one is not disturbed";
}

TEST(HubState, RefusesAnotherJobWithoutDisturbingThisOne) {
  for (const char* other : {"job b", ""}) {
    HubOptions options;
    options.job = "job a";
    Party p = party(2, options);
    p.join(0, "job a");
    p.join(1, other, {}, 77);
    EXPECT_THAT(p.last(77, MessageType::kRefused)[0], StartsWith("another run uses this address"));
    p.join(1, "job a");
    EXPECT_EQ(p.count(100, MessageType::kWelcome), 1);
  }
}

TEST(HubState, SendsARestartedRankBackWhileTheOldAttemptEnds) {
  HubOptions options;
  options.job = "job a";
  Party p = party(2, options);
  for (int r = 0; r < 2; ++r) p.join(r, "job a");
  p.join(1, "job a", {}, 77);
  EXPECT_EQ(p.count(77, MessageType::kRetry), 1);
  p.close(101);
  p.join(1, "job a", {}, 78);
  EXPECT_EQ(p.count(78, MessageType::kRetry), 1);
}

TEST(HubState, RefusesAnotherWorldSize) {
  Party p = party(2);
  p.join(0);
  p.join(1, "", {}, 101, 3);
  EXPECT_THAT(p.last(100, MessageType::kRefused)[0],
              AllOf(HasSubstr("expects a world of 3 ranks"), HasSubstr("one of 2")));
  EXPECT_EQ(p.count(101, MessageType::kRefused), 1);
}

TEST(HubState, GivesUpWhenRanksStayAway) {
  HubOptions options;
  options.join_timeout = milliseconds(1000);
  Party p = party(2, options);
  p.join(0);
  p.wait(milliseconds(1200));
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 1 of 2 is missing; present: 0 (node0"),
                    HasSubstr("gave up after 1 s (launch.join_timeout)")));
}

TEST(HubState, WaitsForARankThatIsRestartedBeforeTheStart) {
  Party p = party(2);
  p.join(1);
  p.close(101);
  EXPECT_THAT(p.hub->missing(), HasSubstr("ranks 0, 1 of 2 are missing"));
  p.join_all();
  EXPECT_EQ(p.count(101, MessageType::kWelcome), 1);
}

// ---- A secret ----

TEST(HubState, LetsNobodyInWithoutTheSecret) {
  HubOptions options;
  options.secret = Secret("a secret of the run");
  Party p = party(2, options);
  p.hub->connected(1, "10.0.0.66", "10.0.0.1", p.now);
  p.say(1, MessageType::kHello, {kControlProtocol, "nonce"});
  const auto challenge = p.last(1, MessageType::kChallenge);
  EXPECT_EQ(challenge[1], options.secret.proof("hub", challenge[0], "nonce"));
  // The hub's own proof must not be accepted as the member's.
  p.say(1, MessageType::kProof, {challenge[1]});
  EXPECT_EQ(p.count(1, MessageType::kRefused), 1);
  p.close(1);
  EXPECT_THAT(p.hub->missing(), HasSubstr("1 connection from 10.0.0.66 without the secret"));

  p.hub->connected(2, "10.0.0.2", "10.0.0.1", p.now);
  p.say(2, MessageType::kHello, {kControlProtocol, "nonce"});
  const std::string proof =
      options.secret.proof("member", p.last(2, MessageType::kChallenge)[0], "nonce");
  p.say(2, MessageType::kProof, {proof});
  p.say(2, MessageType::kJoin, {"", "0", "2", "node0", "10", "", pack_introduction({})});
  EXPECT_THAT(p.hub->missing(), StartsWith("rank 1 of 2 is missing"));

  // A proof that was overheard is worthless for another connection.
  p.hub->connected(3, "10.0.0.66", "10.0.0.1", p.now);
  p.say(3, MessageType::kHello, {kControlProtocol, "nonce"});
  p.say(3, MessageType::kProof, {proof});
  EXPECT_EQ(p.count(3, MessageType::kRefused), 1);
}

TEST(HubState, ClosesStrangersThatSayNothing) {
  Party p = party(2);
  p.hub->connected(1, "10.0.0.66", "10.0.0.1", p.now);
  EXPECT_EQ(p.hub->frame_limit(1), 1024u);
  EXPECT_FALSE(p.hub->has_too_many_strangers());
  EXPECT_EQ(p.hub->oldest_stranger(), 1);
  p.wait(milliseconds(2900));
  EXPECT_TRUE(p.ended.empty());
  p.wait(milliseconds(200));
  EXPECT_THAT(p.ended, ::testing::Contains(1));
}

TEST(HubState, LimitsStrangersButNotRanksThatArriveTogether) {
  for (const auto& [ranks, most] : {std::pair{2, 64}, {100, 200}}) {
    Party p = party(ranks);
    for (int i = 1; i < most; ++i) p.hub->connected(i, "10.0.0.66", "10.0.0.1", p.now);
    EXPECT_FALSE(p.hub->has_too_many_strangers());
    p.hub->connected(most, "10.0.0.66", "10.0.0.1", p.now);
    EXPECT_TRUE(p.hub->has_too_many_strangers());
    p.close(7);
    EXPECT_FALSE(p.hub->has_too_many_strangers());
  }
}

TEST(HubState, IgnoresAProvedConnectionThatHasNotJoined) {
  Party p = party(2);
  p.join_all();
  p.greet(50);
  p.say(50, MessageType::kFailure, {"0", "lies", "5"});
  p.say(50, MessageType::kSet, {"1", "key", "value"});
  EXPECT_EQ(p.cause(0), "");
  EXPECT_EQ(p.count(50, MessageType::kAnswer), 0);
}

// ---- Notes and the store ----

TEST(HubState, AnswersAPostWhenAllRanksHaveTheNote) {
  Party p = party(3);
  p.join_all();
  p.say(101, MessageType::kPost, {"8", "stop", "12"});
  for (int r = 0; r < 3; ++r)
    EXPECT_EQ(p.last(100 + r, MessageType::kNote), (std::vector<std::string>{"1", "stop", "12"}));
  p.say(100, MessageType::kAck, {"1"});
  p.say(101, MessageType::kAck, {"1"});
  EXPECT_EQ(p.count(101, MessageType::kPosted), 0);
  p.say(102, MessageType::kAck, {"1"});
  EXPECT_EQ(p.last(101, MessageType::kPosted), std::vector<std::string>{"8"});
}

TEST(HubState, DoesNotWaitForTheAnswerOfARankThatHasLeft) {
  Party p = party(3);
  p.join_all();
  p.say(102, MessageType::kGoodbye, {});
  p.say(101, MessageType::kPost, {"8", "stop", "12"});
  p.say(100, MessageType::kAck, {"1"});
  p.say(101, MessageType::kAck, {"1"});
  EXPECT_EQ(p.count(101, MessageType::kPosted), 1);
}

TEST(HubState, ServesTheStore) {
  Party p = party(2);
  p.join_all();
  p.say(101, MessageType::kGet, {"5", "key"});
  EXPECT_EQ(p.count(101, MessageType::kAnswer), 0);
  p.say(100, MessageType::kSet, {"1", "key", "value"});
  EXPECT_EQ(p.last(101, MessageType::kAnswer), (std::vector<std::string>{"5", "value"}));
  EXPECT_EQ(p.last(100, MessageType::kAnswer), (std::vector<std::string>{"1", ""}));
}

}  // namespace
}  // namespace yoke
