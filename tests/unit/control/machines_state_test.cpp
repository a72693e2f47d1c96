// How the machines of an elastic run agree on who takes part in an attempt.
#include "core/control/machines_state.hpp"

#include <gmock/gmock.h>

#include "tests/unit/control/machines.hpp"

namespace yoke {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MachinesParty;
using ::testing::StartsWith;

// ---- Who takes part ----

TEST(Machines, StartAtOnceWhenAllAreThere) {
  MachinesParty p(1, 2);
  p.come({0});
  EXPECT_EQ(p.plan(), 0);
  p.come({1});
  EXPECT_EQ(p.plan(), 2);
  EXPECT_EQ(p.start(0), "");
  p.planned();
  EXPECT_EQ(p.start(0), "1: 0 of 2");
  EXPECT_EQ(p.start(1), "1: 1 of 2");
  EXPECT_EQ(p.last(1, MessageType::kStart)[3], "0 (node0), 1 (node1)");
}

TEST(Machines, StartWithFewerWhenNoFurtherOneHasComeForAWhile) {
  MachinesParty p(2, 4);
  p.come({0});
  p.wait(seconds(30));
  EXPECT_EQ(p.plan(), 0) << "too few";
  p.come({3});
  p.wait(milliseconds(9750));
  EXPECT_EQ(p.plan(), 0);
  p.wait(milliseconds(250));
  EXPECT_EQ(p.plan(), 2);
  p.planned();
  EXPECT_EQ(p.start(0), "1: 0 of 2");
  EXPECT_EQ(p.start(3), "1: 1 of 2") << "the indices are consecutive";
}

TEST(Machines, WaitAgainAfterEachArrival) {
  MachinesParty p(1, 4);
  p.come({0});
  p.wait(seconds(9));
  p.come({2});
  p.wait(seconds(9));
  EXPECT_EQ(p.plan(), 0);
  p.wait(seconds(1));
  EXPECT_EQ(p.plan(), 2);
}

TEST(Machines, DoNotStartWithoutMachine0) {
  MachinesParty p(1, 3);
  p.come({1, 2});
  p.wait(seconds(30));
  p.come({0});
  EXPECT_EQ(p.plan(), 3);
}

TEST(Machines, EndIfTooFewComeInTime) {
  MachinesParty p(2, 3, {.join_timeout = seconds(20)});
  p.come({0});
  EXPECT_THAT(p.hub->missing(), StartsWith("waiting for the other machines: machines 1, 2 of 3"));
  p.wait(seconds(20));
  EXPECT_EQ(p.over(0), "");
  p.wait(seconds(1));
  EXPECT_EQ(p.over(0),
            "5: machines 1, 2 of 3 are missing; present: 0 (node0, process 10); --nnodes 2:3 needs "
            "at least 2; gave up after 20 s (launch.join_timeout)");
  EXPECT_TRUE(p.hub->finished());
  p.come({1});
  EXPECT_THAT(p.over(1), StartsWith("5: machines 1, 2 of 3 are missing"));
}

TEST(Machines, PlanAgainIfOneHasComeMeanwhile) {
  MachinesParty p(1, 2);
  p.come({0});
  p.wait(seconds(10));
  EXPECT_EQ(p.plan(), 1);
  p.come({1});
  p.planned();
  EXPECT_EQ(p.start(0), "");
  EXPECT_EQ(p.plan(), 2);
  p.planned();
  EXPECT_EQ(p.start(1), "1: 1 of 2");
}

TEST(Machines, PlanAgainIfOneHasGoneMeanwhile) {
  MachinesParty p(1, 2);
  p.come({0, 1});
  p.close(1);
  p.planned();
  EXPECT_EQ(p.start(0), "");
  p.wait(seconds(10));
  EXPECT_EQ(p.plan(), 1);
  p.planned();
  EXPECT_EQ(p.start(0), "1: 0 of 1");
}

TEST(Machines, DoNotStartWithALauncherThatIsStopped) {
  MachinesParty p(1, 3);
  p.come({0, 1});
  p.wait(seconds(3), /*silent=*/1);
  EXPECT_TRUE(p.wants_closed(101));
  p.wait(seconds(8));
  EXPECT_EQ(p.plan(), 1);
  MachinesParty never(1, 3, {.lost_after = milliseconds(0)});
  never.come({0, 1});
  never.wait(seconds(10), /*silent=*/1);
  EXPECT_EQ(never.plan(), 2);
}

// ---- After an attempt ----

MachinesParty running(int min, int max, const std::vector<int>& machines, MachinesOptions o = {}) {
  MachinesParty p(min, max, std::move(o));
  p.come(machines);
  p.wait(seconds(10));
  p.planned();
  EXPECT_NE(p.start(0), "");
  p.forget();
  return p;
}

TEST(Machines, ContinueWithoutOneThatIsLost) {
  MachinesParty p = running(1, 2, {0, 1});
  p.close(1);
  EXPECT_EQ(p.end(0, 5), AttemptEnd::kOwn);
  p.ready(0);
  p.wait(milliseconds(9750));
  EXPECT_EQ(p.plan(), 0);
  p.wait(milliseconds(250));
  EXPECT_EQ(p.plan(), 1);
  p.planned();
  EXPECT_EQ(p.start(0), "2: 0 of 1");
}

TEST(Machines, WaitForOneWhoseRanksHaveNotEnded) {
  MachinesParty p = running(1, 2, {0, 1}, {.join_timeout = seconds(100)});
  p.end(0, 5);
  p.ready(0);
  p.wait(seconds(60));
  EXPECT_EQ(p.plan(), 0);
  EXPECT_THAT(p.hub->missing(), HasSubstr("their ranks have not ended yet: 1 (node1, process 11)"));
  p.end(1, 5);
  p.ready(1);
  EXPECT_EQ(p.plan(), 2);

  MachinesParty late = running(1, 2, {0, 1}, {.join_timeout = seconds(100)});
  late.end(0, 5);
  late.ready(0);
  late.wait(seconds(101));
  EXPECT_EQ(late.plan(), 1);
}

TEST(Machines, AreStoppedForOneThatComes) {
  MachinesParty p = running(1, 3, {0, 1});
  p.come({2});
  const std::string why =
      "machine 2 (node2, process 12) has come; the ranks save, and all machines start them again";
  EXPECT_EQ(p.last(0, MessageType::kStop).at(0), why);
  EXPECT_EQ(p.last(1, MessageType::kStop).at(0), why);
  EXPECT_TRUE(p.last(2, MessageType::kStop).empty());
  // 143: stopped before the first step. 5: it noticed only that the others had ended.
  for (const int code : {75, 143, 5}) EXPECT_EQ(p.end(0, code), AttemptEnd::kPlanned) << code;
  for (const int code : {0, 1, 2, 3, 130}) EXPECT_EQ(p.end(0, code), AttemptEnd::kOwn) << code;
  EXPECT_EQ(p.end(1, 75), AttemptEnd::kPlanned);
  p.ready(1);
  EXPECT_EQ(p.plan(), 0);
  p.ready(0);
  EXPECT_EQ(p.plan(), 3);
  p.planned();
  EXPECT_EQ(p.start(2), "2: 2 of 3");
  EXPECT_EQ(p.end(0, 75), AttemptEnd::kOwn) << "the order is for one attempt";
}

TEST(Machines, AreStoppedOnceForTwoThatCome) {
  MachinesParty p = running(1, 3, {0});
  p.come({1, 2});
  EXPECT_EQ(std::count_if(p.sent.begin(),
                          p.sent.end(),
                          [](auto& m) { return m.second.type == MessageType::kStop; }),
            1);
}

TEST(Machines, ThatSaveNothingAreNotStopped) {
  MachinesParty p = running(1, 2, {0}, {.saves = false});
  p.come({1});
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty());
  EXPECT_THAT(p.last(1, MessageType::kNews).at(0), HasSubstr("checkpoint.every = 0"));
  EXPECT_EQ(p.end(0, 5), AttemptEnd::kOwn);
  p.ready(0);
  EXPECT_EQ(p.plan(), 2);
}

TEST(Machines, CountALossEvenIfTheMachineComesBackAtOnce) {
  MachinesParty p = running(1, 2, {0, 1});
  p.close(1);
  p.join(1, {.process = "77", .connection = 301});
  p.ready(1);
  EXPECT_FALSE(p.last(0, MessageType::kStop).empty());
  EXPECT_EQ(p.end(0, 5), AttemptEnd::kLost);
}

TEST(Machines, EndAnAttemptThatOneOfThemCannotTakePartIn) {
  MachinesParty p = running(1, 3, {0, 1, 2});
  p.end(1, 5);
  p.ready(1);
  p.wait(seconds(7));
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty());
  p.wait(seconds(1));
  EXPECT_THAT(p.last(0, MessageType::kStop).at(0), StartsWith("machine 1 (node1, process 11) is"));
  EXPECT_FALSE(p.last(2, MessageType::kStop).empty());
  EXPECT_EQ(p.end(0, 143), AttemptEnd::kLost);
  EXPECT_EQ(p.end(2, 75), AttemptEnd::kLost);
}

TEST(Machines, KeepTheirPartIfOnlyTheConnectionBreaks) {
  MachinesParty p = running(1, 3, {0, 1});
  p.close(1);
  p.wait(seconds(5));
  p.join(1, {.attempt = "1", .connection = 301});
  p.wait(seconds(20));
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty());
  p.close(1);
  p.come({2});
  p.join(1, {.attempt = "1", .connection = 302});
  EXPECT_FALSE(p.last(1, MessageType::kStop).empty()) << "the order is repeated";
  EXPECT_EQ(p.end(1, 75), AttemptEnd::kLost);
}

TEST(Machines, OfAnEarlierAttemptAreBusyUntilTheirRanksEnd) {
  MachinesParty p(1, 2);
  p.come({0});
  p.join(1, {.attempt = "4"});
  p.wait(seconds(20));
  EXPECT_EQ(p.plan(), 0);
  EXPECT_EQ(p.end(1, 75), AttemptEnd::kOwn);
  p.ready(1);
  EXPECT_EQ(p.plan(), 2);
}

// ---- The end of the run ----

TEST(Machines, AllStopIfAUserStopsOne) {
  for (const int code : {75, 130, 143}) {
    MachinesParty p = running(1, 3, {0, 1});
    p.come({2});
    p.leave(1, code, "stopped by its user");
    for (const int m : {0, 2})
      EXPECT_EQ(p.over(m), concat(code, ": machine 1 (node1, process 11): stopped by its user"));
    EXPECT_EQ(p.over(1), "");
    EXPECT_TRUE(p.hub->finished());
    // Ranks that have not met yet do not learn it from each other.
    EXPECT_FALSE(p.last(0, MessageType::kStop).empty());
  }
}

TEST(Machines, ContinueIfAUserStopsOneThatOnlyWaits) {
  MachinesParty p = running(1, 2, {0}, {.saves = false});
  p.come({1});
  p.leave(1, 130, "stopped by its user");
  EXPECT_EQ(p.over(0), "");
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty());
}

TEST(Machines, AllEndWithMachine0) {
  MachinesParty p = running(1, 3, {0, 1});
  p.come({2});
  p.leave(0, 5, "its launcher gave up: all 2 restarts are used");
  EXPECT_EQ(p.over(2),
            "5: machine 0 (node0, process 10): its launcher gave up: all 2 restarts are used");
  MachinesParty complete = running(1, 2, {0}, {.saves = false});
  complete.come({1});
  complete.leave(0, 0, "");
  EXPECT_EQ(complete.over(1), "0: machine 0 (node0, process 10) has ended: the run is complete");
}

TEST(Machines, ContinueWithoutOneThatGivesUp) {
  MachinesParty p = running(1, 2, {0, 1});
  p.end(1, 5);
  p.leave(1, 5, "its launcher gave up");
  p.close(1);
  p.end(0, 5);
  p.ready(0);
  EXPECT_EQ(p.plan(), 1) << "it is not waited for";

  MachinesParty two = running(2, 2, {0, 1});
  two.leave(1, 5, "its launcher gave up");
  two.end(0, 5);
  two.ready(0);
  EXPECT_EQ(two.over(0), "5: machine 1 (node1, process 11) cannot take part: its launcher gave up");
}

TEST(Machines, AreNotEndedByOneThatHasFinished) {
  MachinesParty p = running(1, 2, {0, 1});
  EXPECT_EQ(p.end(1, 0), AttemptEnd::kOwn);
  p.leave(1, 0, "");
  p.close(1);
  p.wait(seconds(60));
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty());
  EXPECT_EQ(p.over(0), "");
}

TEST(Machines, DoNotWaitForOneThatDeclines) {
  MachinesParty p(1, 9);
  p.come({0});
  for (int m = 1; m < 9; ++m) p.decline("job", m, "unknown key 'setps'");
  EXPECT_EQ(p.plan(), 1);

  MachinesParty all(9, 9);
  all.come({0});
  all.decline("another job", 4, "no");
  all.decline("job", 0, "no");
  all.decline("job", 9, "no");
  EXPECT_EQ(all.over(0), "");
  all.decline("job", 4, "unknown key 'setps'");
  EXPECT_EQ(all.over(0), "2: machine 4 (node4, process 7) cannot take part: unknown key 'setps'");

  MachinesParty again(9, 9);
  again.decline("job", 4, "unknown key 'setps'");
  again.join(4);
  again.come({0});
  again.decline("job", 4, "a stranger");
  EXPECT_EQ(again.over(0), "") << "a machine that is there cannot be declined by another process";
}

TEST(Machines, AreRefusedAltogether) {
  MachinesParty p(1, 2);
  p.hub->refuse("no such key");
  EXPECT_FALSE(p.hub->finished());
  p.join(1);
  EXPECT_EQ(p.over(1), "2: no such key");
  EXPECT_TRUE(p.hub->finished());
}

// ---- Who may join ----

TEST(Machines, WithAnotherConfigurationAreRefusedAndNotWaitedFor) {
  MachinesParty p(1, 2);
  p.come({0});
  p.join(1, {.facts = {{"seed", "2", "run.toml:3"}}});
  EXPECT_EQ(p.last(1, MessageType::kRefused).at(0),
            "the machines do not run the same job:\n  seed: machine 0 (node0) has 1, machine 1 "
            "(node1) has 2 (run.toml:3)");
  EXPECT_EQ(p.plan(), 1);
  p.planned();
  p.connections.erase(1);
  p.join(1, {.facts = {{"seed", "2", ""}}, .connection = 301});
  EXPECT_TRUE(p.last(0, MessageType::kStop).empty()) << "the run is not disturbed";
}

TEST(Machines, OfAnotherRunAreRefused) {
  MachinesParty p(1, 2);
  p.join(1, {.job = "other"});
  EXPECT_THAT(p.last(1, MessageType::kRefused).at(0),
              AllOf(HasSubstr("another run"), HasSubstr("machine 0 (node0, process 10), of job")));
}

// The machine has lost power, so nothing has closed its connection.
TEST(Machines, ThatComeAgainReplaceASilentConnectionWithoutLostAfter) {
  MachinesParty p = running(1, 2, {0, 1}, {.lost_after = milliseconds(0)});
  p.join(1, {.process = "66", .connection = 301});
  EXPECT_FALSE(p.last(1, MessageType::kRetry).empty());
  p.wait(seconds(3), /*silent=*/1);
  p.join(1, {.process = "66", .connection = 302});
  p.ready(1);
  EXPECT_THAT(p.last(0, MessageType::kStop).at(0), HasSubstr("machine 1 (node1, process 66)"));
  EXPECT_EQ(p.end(0, 5), AttemptEnd::kLost);
  p.connections[1] = 101;
  EXPECT_TRUE(p.wants_closed(101));
  EXPECT_THAT(p.last(1, MessageType::kRefused).at(0), HasSubstr("now taken by node1, process 66"));
}

TEST(Machines, WithANumberThatIsTakenAreRefused) {
  MachinesParty p = running(1, 2, {0, 1});
  p.join(1, {.process = "66", .connection = 301});
  EXPECT_EQ(p.last(1, MessageType::kRetry).at(0),
            "--node-rank 1 is taken by node1, process 11; give every machine a number of its own");
  p.join(0, {.process = "66", .connection = 302});
  EXPECT_THAT(p.last(0, MessageType::kRefused).at(0),
              StartsWith("--node-rank 0 is taken by node0"));
  p.join(7, {.connection = 303});
  EXPECT_THAT(p.last(7, MessageType::kRefused).at(0), HasSubstr("allowed: 0 to 1"));
  p.connections = {{0, 100}, {1, 101}};
  p.join(1, {.attempt = "1", .connection = 304});
  EXPECT_TRUE(p.wants_closed(101)) << "a process that comes again replaces its own connection";
}

}  // namespace
}  // namespace yoke
