#include "sdk/mesh/schedule/checker.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/mesh/random_plan.hpp"

namespace yoke::mesh {
namespace {

using testing::Dice;
using testing::random_step;
using testing::text;
using List = std::vector<Action>;

std::vector<List> all_ranks(const StepSpec& spec, const List& list) {
  const int tp = spec.reduce_partial_grads ? 2 : 1;
  return std::vector<List>(spec.shards * spec.replicas * tp, list);
}

// Returns the step of four units over two shards and two replicas, with two micro-batches.
StepSpec hsdp() {
  StepSpec spec;
  for (int i = 0; i < 4; ++i) {
    spec.units.push_back({true, 128, 128});
    spec.blocks.push_back({i});
  }
  spec.shards = 2;
  spec.replicas = 2;
  spec.micros = 2;
  return spec;
}

size_t find(const List& list, ActionKind kind, int from = 0) {
  size_t i = from;
  while (list.at(i).kind != kind) ++i;
  return i;
}

void expect_rule(const StepSpec& spec, const List& list, CheckedRule rule) {
  const std::vector<ScheduleFault> faults = check_rank(spec, list);
  ASSERT_EQ(faults.size(), 1u) << "the checker found nothing";
  EXPECT_EQ(faults[0].rule, rule) << faults[0].text;
}

TEST(Checker, WhatTpDoesNotCutIsSummedOverItOnceBeforeTheNorm) {
  StepSpec spec = hsdp();
  spec.reduce_partial_grads = true;
  const List correct = build_schedule(spec);
  const size_t at = find(correct, ActionKind::kReducePartialGrads);
  EXPECT_EQ(correct.at(at + 1).kind, ActionKind::kReduceScalars);
  List missing = correct, twice = correct, early = correct;
  missing.erase(missing.begin() + static_cast<long>(at));
  expect_rule(spec, missing, CheckedRule::kPartialGrads);
  twice.insert(twice.begin() + static_cast<long>(at), correct[at]);
  expect_rule(spec, twice, CheckedRule::kPartialGrads);
  std::swap(early[at], early[at - 1]);
  expect_rule(spec, early, CheckedRule::kAllReduceGrad);
}

TEST(Checker, EveryListOfTheBuilderIsCorrect) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Dice dice(seed);
    const StepSpec spec = random_step(dice);
    const auto faults = check_ranks({spec}, all_ranks(spec, build_schedule(spec)));
    EXPECT_TRUE(faults.empty()) << "seed " << seed << "\n" << text(faults);
  }
}

TEST(Checker, NoActionOfACorrectListCanBeLeftOut) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    const StepSpec spec = random_step(dice);
    const List list = build_schedule(spec);
    for (size_t i = 0; i < list.size(); ++i) {
      List mutant = list;
      mutant.erase(mutant.begin() + i);
      EXPECT_FALSE(check_rank(spec, mutant).empty())
          << "seed " << seed << " without " << to_string(list[i]);
    }
  }
}

TEST(Checker, NoActionOfACorrectListCanBeDoubled) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    Dice dice(seed);
    const StepSpec spec = random_step(dice);
    const List list = build_schedule(spec);
    for (size_t i = 0; i < list.size(); ++i) {
      List mutant = list;
      mutant.insert(mutant.begin() + i, list[i]);
      EXPECT_FALSE(check_rank(spec, mutant).empty())
          << "seed " << seed << " doubled " << to_string(list[i]);
    }
  }
}

TEST(Checker, ABlockMayNotRunBeforeItsUnitIsWhole) {
  List list = build_schedule(hsdp());
  const size_t wait = find(list, ActionKind::kWaitUnshard);
  std::swap(list[wait], list[find(list, ActionKind::kForward)]);
  expect_rule(hsdp(), list, CheckedRule::kWhole);
}

StepSpec hsdp_in_fp8() {
  StepSpec spec = hsdp();
  for (const int u : {1, 3}) spec.units[u].fp8_bytes = 32;
  spec.scale_bytes = 5 * 4;
  return spec;
}

TEST(Checker, UnitsAreGatheredInFp8WithTheScalesOfThisStep) {
  const StepSpec spec = hsdp_in_fp8();
  const List correct = build_schedule(spec);
  ASSERT_EQ(correct.at(0).kind, ActionKind::kReduceScales);
  EXPECT_TRUE(check_ranks({spec}, all_ranks(spec, correct)).empty());
  List missing = correct, late = correct, twice = correct, wrong = correct;
  missing.erase(missing.begin());
  expect_rule(spec, missing, CheckedRule::kScales);
  // The first unit is not in fp8, so it may be gathered before.
  std::swap(late[0], late[1]);
  EXPECT_TRUE(check_rank(spec, late).empty());
  const auto in_fp8 = [](List& list) {
    return std::find_if(list.begin(), list.end(), [](const Action& a) { return a.unit == 1; });
  };
  ASSERT_EQ(in_fp8(late)->kind, ActionKind::kUnshard);
  EXPECT_EQ(in_fp8(late)->bytes, 32);
  std::rotate(late.begin() + 1, late.begin() + 2, in_fp8(late) + 1);
  expect_rule(spec, late, CheckedRule::kScales);
  twice.push_back(twice[0]);
  std::rotate(twice.begin(), twice.end() - 1, twice.end());
  expect_rule(spec, twice, CheckedRule::kScales);
  wrong[0].bytes += 4;
  expect_rule(spec, wrong, CheckedRule::kBytes);
  List wide = correct;
  in_fp8(wide)->bytes = spec.units[1].param_bytes;
  expect_rule(spec, wide, CheckedRule::kBytes);
}

TEST(Checker, AllRanksOfTheShardsReduceTheScales) {
  const StepSpec spec = hsdp_in_fp8();
  std::vector<List> lists = all_ranks(spec, build_schedule(spec));
  // This rank reduces its scales later, when the first unit is already being gathered.
  std::swap(lists[1][0], lists[1][1]);
  const std::vector<ScheduleFault> faults = check_ranks({spec}, lists);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0].rule, CheckedRule::kPairing) << text(faults);
}

TEST(Checker, AUnitMayNotBeReshardedWhileItIsNeeded) {
  List list = build_schedule(hsdp());
  std::swap(list[find(list, ActionKind::kReshard)], list[find(list, ActionKind::kForward)]);
  expect_rule(hsdp(), list, CheckedRule::kWhole);
}

TEST(Checker, AUnitMayNotBeGatheredTwice) {
  List list = build_schedule(hsdp());
  list.insert(list.begin() + 1, list[0]);
  expect_rule(hsdp(), list, CheckedRule::kUnshard);
}

TEST(Checker, NothingMayStayWhole) {
  List list = build_schedule(hsdp());
  size_t last = list.size() - 1;
  while (list[last].kind != ActionKind::kReshard) --last;
  list.erase(list.begin() + last);
  expect_rule(hsdp(), list, CheckedRule::kUnshard);
}

TEST(Checker, BackwardNeedsWhatForwardSaved) {
  List list = build_schedule(hsdp());
  list[find(list, ActionKind::kForward)].save = Save::kNothing;
  expect_rule(hsdp(), list, CheckedRule::kCompute);
}

TEST(Checker, BlocksRunBackwardInReverse) {
  StepSpec spec = hsdp();
  spec.shards = spec.replicas = 1;
  List list = build_schedule(spec);
  const size_t backward = find(list, ActionKind::kBackward);
  std::swap(list[backward], list[backward + 1]);
  expect_rule(spec, list, CheckedRule::kCompute);
}

TEST(Checker, GradientsMayNotBeReducedBeforeTheyAreComplete) {
  List list = build_schedule(hsdp());
  std::swap(list[find(list, ActionKind::kReduceGrad)], list[find(list, ActionKind::kBackward)]);
  expect_rule(hsdp(), list, CheckedRule::kGradient);
}

TEST(Checker, GradientsMayNotBeAddedToWhileTheyAreReduced) {
  StepSpec spec = hsdp();
  spec.blocks = {{0}, {0}};
  spec.units.resize(1);
  List list = build_schedule(spec);
  // This moves the end of the first reduction to after the next backward.
  const size_t wait = find(list, ActionKind::kWaitReduce);
  ASSERT_EQ(list[wait + 1].kind, ActionKind::kBackward);
  std::swap(list[wait], list[wait + 1]);
  expect_rule(spec, list, CheckedRule::kGradient);
}

TEST(Checker, ReplicasAreSummedOnlyWhenTheShardIsComplete) {
  List list = build_schedule(hsdp());
  std::swap(list[find(list, ActionKind::kAllReduceGrad)],
            list[find(list, ActionKind::kWaitReduce)]);
  expect_rule(hsdp(), list, CheckedRule::kAllReduceGrad);
}

TEST(Checker, TheNormNeedsEveryGradient) {
  List list = build_schedule(hsdp());
  const size_t clip = find(list, ActionKind::kReduceScalars);
  ASSERT_EQ(list[clip - 1].kind, ActionKind::kWaitGrad);
  std::swap(list[clip], list[clip - 1]);
  expect_rule(hsdp(), list, CheckedRule::kAllReduceGrad);
}

TEST(Checker, TheUpdateComesLast) {
  List list = build_schedule(hsdp());
  std::swap(list[list.size() - 1], list[list.size() - 2]);
  expect_rule(hsdp(), list, CheckedRule::kEnd);
}

TEST(Checker, BytesAreThoseOfTheUnit) {
  for (ActionKind kind : {ActionKind::kUnshard,
                          ActionKind::kReshard,
                          ActionKind::kReduceGrad,
                          ActionKind::kWaitReduce,
                          ActionKind::kAllReduceGrad}) {
    List list = build_schedule(hsdp());
    list[find(list, kind)].bytes += 64;
    expect_rule(hsdp(), list, CheckedRule::kBytes);
  }
}

TEST(Checker, RanksMustIssueTheSameCollectivesInTheSameOrder) {
  std::vector<List> lists = all_ranks(hsdp(), build_schedule(hsdp()));
  List& odd = lists[3];
  const size_t first = find(odd, ActionKind::kUnshard, 1);
  const size_t second = find(odd, ActionKind::kUnshard, static_cast<int>(first) + 1);
  std::swap(odd[first], odd[second]);
  const std::vector<ScheduleFault> faults = check_ranks({hsdp()}, lists);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults.back().rule, CheckedRule::kPairing) << text(faults);
}

TEST(Checker, AllRanksOfTpSumTheirPartialGradients) {
  StepSpec spec = hsdp();
  spec.reduce_partial_grads = true;
  std::vector<List> lists = all_ranks(spec, build_schedule(spec));
  ASSERT_EQ(lists.size(), 8u);
  lists[5].erase(lists[5].begin() + find(lists[5], ActionKind::kReducePartialGrads));
  const std::vector<ScheduleFault> faults = check_ranks({spec}, lists);
  const auto waits = [](const ScheduleFault& f) {
    return f.rank == 4 && f.rule == CheckedRule::kDeadlock &&
           f.text == "ReducePartialGrads waits forever for a peer";
  };
  EXPECT_TRUE(std::any_of(faults.begin(), faults.end(), waits)) << text(faults);
}

// Each list alone is correct, but together they deadlock. Ranks 0 and 3 wait for an all-reduce over
// the replicas before they issue a reduce-scatter; ranks 1 and 2 wait for that reduce-scatter
// before they issue the all-reduce.
TEST(Checker, CircularWaitsAreFound) {
  StepSpec spec;
  spec.units = {{true, 64, 64}, {true, 64, 64}};
  spec.blocks = {{0}, {1}};
  spec.shards = 2;
  spec.replicas = 2;
  const List list = build_schedule(spec);
  std::vector<List> lists = all_ranks(spec, list);
  // Ranks 0 and 3 wait for the all-reduce of unit 1 before they reduce unit 0.
  for (int rank : {0, 3}) {
    List& mine = lists[rank];
    const size_t wait = find(mine, ActionKind::kWaitGrad);
    const size_t reduce = find(
        mine, ActionKind::kReduceGrad, static_cast<int>(find(mine, ActionKind::kReduceGrad)) + 1);
    ASSERT_LT(reduce, wait);
    std::rotate(mine.begin() + reduce, mine.begin() + wait, mine.begin() + wait + 1);
  }
  // Ranks 1 and 2 start that all-reduce only after unit 0 is reduced.
  for (int rank : {1, 2}) {
    List& mine = lists[rank];
    const size_t sum = find(mine, ActionKind::kAllReduceGrad);
    size_t wait = find(
        mine, ActionKind::kWaitReduce, static_cast<int>(find(mine, ActionKind::kWaitReduce)) + 1);
    ASSERT_LT(sum, wait);
    std::rotate(mine.begin() + sum, mine.begin() + sum + 1, mine.begin() + wait + 1);
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(check_rank(spec, lists[rank]).empty()) << rank;
  const std::vector<ScheduleFault> faults = check_ranks({spec}, lists);
  ASSERT_FALSE(faults.empty());
  EXPECT_EQ(faults[0].rule, CheckedRule::kDeadlock) << text(faults);
}

// The ranks 0 and 2 send to rank 3 in the same communicator. Rank 2 sends last, when rank 0 has
// reached the end of its list, and with that message those of rank 0 are carried out, too.
TEST(Checker, NamesTheActionOfAMessageThatMeetsAnotherOne) {
  const std::vector<List> lists = {
      {{.kind = ActionKind::kSendCarry, .micro = 1, .stage = 2, .peer = 3},
       {.kind = ActionKind::kSendCarry, .micro = 2, .stage = 2, .peer = 3}},
      {},
      {{.kind = ActionKind::kReceiveCarry, .micro = 0, .stage = 6, .peer = 3},
       {.kind = ActionKind::kWaitCarry, .micro = 0, .stage = 6, .peer = 3},
       {.kind = ActionKind::kSendCarry, .micro = 0, .stage = 6, .peer = 3}},
      {{.kind = ActionKind::kReceiveCarry, .micro = 0, .stage = 7, .peer = 2},
       {.kind = ActionKind::kReceiveCarry, .micro = 1, .stage = 3, .peer = 0},
       {.kind = ActionKind::kReceiveCarry, .micro = 3, .stage = 3, .peer = 0},
       {.kind = ActionKind::kSendCarry, .micro = 0, .stage = 5, .peer = 2}}};
  std::vector<ScheduleFault> faults = check_ranks(std::vector<StepSpec>(4), lists);
  std::erase_if(faults, [](const ScheduleFault& f) { return f.rule != CheckedRule::kPairing; });
  ASSERT_EQ(faults.size(), 1u) << text(faults);
  EXPECT_EQ(faults[0].rank, 0);
  EXPECT_EQ(faults[0].action, 1);
  EXPECT_EQ(faults[0].text, to_string(lists[0][1]) + " meets another message");
}

}  // namespace
}  // namespace yoke::mesh
