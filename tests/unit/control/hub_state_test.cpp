// The decisions of the hub, with a clock that the tests turn.
#include "core/control/hub_state.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "yoke/text.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A hub and the members that talk to it. Connection numbers are 100 + rank unless stated.
class Party {
 public:
  explicit Party(int32_t ranks, HubOptions options = {}) {
    options.world_size = ranks;
    options.host = "node0";
    options.process = "10";
    hub = std::make_unique<HubState>(options, now);
  }

  void wait(milliseconds time) {
    for (milliseconds t{0}; t < time; t += milliseconds(50)) {
      now += milliseconds(50);
      hub->tick(now);
      collect();
    }
  }
  // Lets time pass while these ranks send beats.
  void wait_with_beats(milliseconds time, const std::vector<int>& ranks) {
    for (milliseconds t{0}; t < time; t += milliseconds(50)) {
      for (const int r : ranks) say(100 + r, MessageType::kBeat, {"7", "31"});
      wait(milliseconds(50));
    }
  }
  void say(int connection, MessageType type, std::vector<std::string> fields) {
    hub->received(connection, {type, std::move(fields)}, now);
    collect();
  }
  // Connects and proves itself without a secret.
  void greet(int connection) {
    hub->connected(connection, "10.0.0.9", "10.0.0.1", now);
    say(connection, MessageType::kHello, {kControlProtocol, "nonce"});
    say(connection, MessageType::kProof, {""});
  }
  void join(int rank,
            const std::string& job = "",
            const Introduction& facts = {{"train.lr", "0.1", ""}},
            int connection = -1,
            int world = -1) {
    if (connection < 0) connection = 100 + rank;
    greet(connection);
    say(connection,
        MessageType::kJoin,
        {job,
         concat(rank),
         concat(world < 0 ? size : world),
         concat("node", rank / 2),
         concat(10 + rank),
         concat("10.0.0.", 1 + rank / 2),
         pack_introduction(facts)});
  }
  void close(int connection) {
    hub->closed(connection, now);
    collect();
  }
  void join_all() {
    for (int r = 0; r < size; ++r) join(r);
  }

  // Returns the fields of the last message of a type to a connection; empty if there was none.
  std::vector<std::string> last(int connection, MessageType type) const {
    for (auto m = sent.rbegin(); m != sent.rend(); ++m) {
      if (m->first == connection && m->second.type == type) return m->second.fields;
    }
    return {};
  }
  // Returns the first cause as told to a rank; "" = not told.
  std::string cause(int rank) const {
    const auto fields = last(100 + rank, MessageType::kLost);
    return fields.empty() ? "" : fields[0];
  }
  int count(int connection, MessageType type) const {
    return static_cast<int>(std::count_if(sent.begin(), sent.end(), [&](auto& m) {
      return m.first == connection && m.second.type == type;
    }));
  }

  int size = 0;
  HubState::Time now{};
  std::unique_ptr<HubState> hub;
  std::vector<std::pair<int, Message>> sent;
  std::vector<int> ended;  // connections that the hub wants closed

 private:
  void collect() {
    for (const HubAction& action : hub->take_actions()) {
      if (action.close) ended.push_back(action.connection);
      FrameReader reader(1 << 20);
      reader.append(action.bytes.data(), action.bytes.size());
      while (const auto message = reader.next()) sent.push_back({action.connection, *message});
    }
  }
};

Party party(int ranks, HubOptions options = {}) {
  Party p(ranks, std::move(options));
  p.size = ranks;
  return p;
}

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
  p.say(50, MessageType::kDecline, {"2", "node1", "12", "no such data"});
  EXPECT_THAT(p.last(100, MessageType::kRefused)[0],
              HasSubstr("rank 2 (node1, process 12) cannot take part: no such data"));
  EXPECT_FALSE(p.hub->finished()) << "rank 1 does not know yet";
  p.join(1);
  EXPECT_THAT(p.last(101, MessageType::kRefused)[0], HasSubstr("no such data"));
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
  EXPECT_EQ(p.hub->strangers(), 1u);
  EXPECT_EQ(p.hub->oldest_stranger(), 1);
  p.wait(milliseconds(2900));
  EXPECT_TRUE(p.ended.empty());
  p.wait(milliseconds(200));
  EXPECT_THAT(p.ended, ::testing::Contains(1));
}

TEST(HubState, IgnoresAProvedConnectionThatHasNotJoined) {
  Party p = party(2);
  p.join_all();
  p.greet(50);
  p.say(50, MessageType::kFailure, {"0", "lies"});
  p.say(50, MessageType::kSet, {"1", "key", "value"});
  EXPECT_EQ(p.cause(0), "");
  EXPECT_EQ(p.count(50, MessageType::kAnswer), 0);
}

// ---- Presence ----

TEST(HubState, NamesARankWhoseConnectionCloses) {
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

TEST(HubState, TakesTheReportOfASurvivorForAConsequence) {
  Party p = party(4);
  p.join_all();
  p.say(102, MessageType::kFailure, {"1", "all_gather: connection closed"});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(100), {0, 1, 2, 3});
  p.close(103);
  EXPECT_THAT(p.cause(2), StartsWith("rank 3 (node1, process 13) ended"));
}

TEST(HubState, ReportsABrokenConnectionBetweenLivingRanks) {
  Party p = party(4);
  p.join_all();
  p.say(102, MessageType::kFailure, {"1", "all_gather: connection closed"});
  p.wait_with_beats(milliseconds(500), {0, 1, 2, 3});
  EXPECT_THAT(p.cause(0),
              AllOf(StartsWith("rank 2 (node1, process 12): all_gather: connection closed"),
                    HasSubstr("all ranks still answer")));
}

TEST(HubState, PassesOnTheErrorOfARank) {
  Party p = party(2);
  p.join_all();
  p.say(101, MessageType::kFailure, {"0", "the loss is not finite"});
  EXPECT_EQ(p.cause(0), "rank 1 (node0, process 11) failed: the loss is not finite");
}

TEST(HubState, NamesASilentRankInTime) {
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

TEST(HubState, NamesAllRanksOfASilentMachine) {
  Party p = party(4);
  p.join_all();
  p.wait_with_beats(milliseconds(300), {0, 1, 2, 3});
  p.wait_with_beats(milliseconds(200), {0, 1, 2});  // the last beats of two ranks differ
  p.wait_with_beats(milliseconds(2300), {0, 1});
  EXPECT_THAT(
      p.cause(0),
      StartsWith("rank 2 (node1, process 12), rank 3 (node1, process 13) have not answered"));
}

TEST(HubState, NeverTakesRanksForLostWithoutALimit) {
  HubOptions options;
  options.lost_after = milliseconds(0);
  Party p = party(2, options);
  p.join_all();
  p.wait_with_beats(milliseconds(60'000), {0});
  EXPECT_EQ(p.cause(0), "");
}

// The process of rank 0 was stopped for a minute, and the hub with it.
TEST(HubState, DoesNotAccuseOthersOfItsOwnSilence) {
  Party p = party(2);
  p.join_all();
  p.now += std::chrono::minutes(1);
  p.hub->tick(p.now);
  p.wait_with_beats(milliseconds(3000), {0, 1});
  EXPECT_EQ(p.cause(0), "");
  p.wait_with_beats(milliseconds(3000), {0});
  EXPECT_THAT(p.cause(0), StartsWith("rank 1"));
}

TEST(HubState, LetsRanksLeaveInOrder) {
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

TEST(HubState, SendsBeatsToItsMembers) {
  Party p = party(2);
  p.join_all();
  p.wait_with_beats(milliseconds(1000), {0, 1});
  EXPECT_GE(p.count(101, MessageType::kBeat), 3);
  EXPECT_LE(p.count(101, MessageType::kBeat), 5);
}

// Every order of: a rank dies, two survivors report a lost connection, a beat of each survivor. In
// each of them the dead rank is named, exactly once, to all that live.
TEST(HubState, FindsTheFirstCauseInEveryOrderOfEvents) {
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
          p.say(100 + living[event - 1], MessageType::kFailure, {"1", "connection closed"});
        if (event >= 3) p.say(100 + living[event - 3], MessageType::kBeat, {"7", "31"});
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
