#include "sdk/mesh/schedule/pipeline.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sdk/mesh/schedule/checker.hpp"
#include "sdk/mesh/schedule/message_comms.hpp"
#include "tests/unit/mesh/chain_pipeline.hpp"
#include "tests/unit/mesh/random_plan.hpp"

namespace yoke::mesh {
namespace {

using testing::Case;
using testing::chain;
using testing::Dice;
using testing::lists_of;
using testing::text;
using List = std::vector<Action>;

// Returns the numbers of chunks that a kind is tested with.
std::vector<int> chunks_of(const PipelineInfo& info) {
  return info.any_chunks ? std::vector<int>{2, 3, 4} : std::vector<int>{info.chunks};
}

// Calls f for every kind of pipeline of 2 to 8 ranks with up to 16 micro-batches.
template <class F>
void for_each_case(F&& f) {
  for (const PipelineInfo& info : pipeline_infos()) {
    for (int p = 2; p <= 8; ++p) {
      for (const int v : chunks_of(info)) {
        for (int m = 1; m <= 16; ++m) {
          if (micros_fault(info.kind, p, m).empty()) f(Case{info.kind, p, v, m});
        }
      }
    }
  }
}

// Random models, cuts and options; some ranks have only frozen blocks.
std::vector<StepSpec> random_pipeline(Dice& dice) {
  const auto& infos = pipeline_infos();
  const PipelineInfo& info = infos[dice.roll(0, static_cast<int>(infos.size()) - 1)];
  Case c{info.kind, dice.roll(2, 4), info.any_chunks ? dice.roll(2, 3) : info.chunks, 0};
  do {
    c.micros = dice.roll(1, 9);
  } while (!micros_fault(c.kind, c.ranks, c.micros).empty());
  std::vector<StepSpec> specs =
      chain(c, dice.roll(1, 3), dice.one_in(3) ? dice.roll(1, c.ranks * c.chunks) : 0);
  const StepSpec options = testing::random_step(dice);
  const int whole_stages = dice.roll(0, c.chunks);
  for (StepSpec& spec : specs) {
    spec.shards = options.shards;
    spec.replicas = options.replicas;
    spec.reshard_after_forward = options.reshard_after_forward;
    spec.recompute = options.recompute;
    spec.accumulate = options.accumulate;
    spec.whole_stages = whole_stages;
    spec.forward_only = options.forward_only;
    for (UnitSpec& unit : spec.units) {
      unit.param_bytes *= spec.shards;
      unit.grad_bytes *= spec.shards;
    }
  }
  return specs;
}

// If it did both, its sends would wait for messages from ranks that wait for these sends.
TEST(Pipeline, ARankNeverSendsInACommunicatorInWhichItReceives) {
  for_each_case([](const Case& c) {
    const std::vector<int> rank_of = place_stages(info_of(c.kind).placement, c.ranks, c.chunks);
    std::map<std::pair<int, int>, std::pair<int, int>> link_of;  // key: rank and communicator
    const auto add = [&](int rank, int from, int to, bool grad) {
      const int comm = message_comm(from, to, grad, c.ranks);
      EXPECT_EQ((link_of.try_emplace({rank, comm}, from, to).first->second), std::pair(from, to))
          << c.text() << " rank " << rank;
    };
    for (size_t s = 0; s + 1 < rank_of.size(); ++s) {
      const int low = rank_of[s], high = rank_of[s + 1];
      if (low == high) continue;
      for (const int rank : {low, high}) {
        add(rank, low, high, /*grad=*/false);
        add(rank, high, low, /*grad=*/true);
      }
    }
  });
}

TEST(Pipeline, EveryStageRunsOnceForEachMicroBatchAndAddsGradientsInTheirOrder) {
  for_each_case([](const Case& c) {
    const std::vector<int> rank_of = place_stages(info_of(c.kind).placement, c.ranks, c.chunks);
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::map<std::pair<char, int>, int> next;  // micro-batch of each part and stage
      const auto run = [&](char part, const StageStep& step) {
        ASSERT_EQ(step.micro, (next[{part, step.stage}]++)) << c.text();
      };
      for (const StageStep& step : training_order(c.kind, rank, c.ranks, c.chunks, c.micros)) {
        ASSERT_EQ(rank_of[step.stage], rank) << c.text();
        if (step.op == StageOp::kForward) run('F', step);
        if (step.op == StageOp::kBackward || step.op == StageOp::kBackwardInput) run('I', step);
        if (step.op == StageOp::kBackward || step.op == StageOp::kBackwardWeight) run('W', step);
      }
      ASSERT_EQ(next.size(), 3u * c.chunks) << c.text();
      for (const auto& [key, count] : next) ASSERT_EQ(count, c.micros) << c.text();
    }
  });
}

TEST(Pipeline, TheListsOfAllRanksFitTogether) {
  int cases = 0;
  for_each_case([&](const Case& c) {
    std::vector<StepSpec> specs = chain(c);
    for (const bool forward_only : {false, true}) {
      for (StepSpec& spec : specs) spec.forward_only = forward_only;
      const auto faults = check_ranks(specs, lists_of(specs));
      EXPECT_TRUE(faults.empty()) << c.text() << (forward_only ? " evaluation\n" : "\n")
                                  << text(faults);
    }
    ++cases;
  });
  EXPECT_GT(cases, 600);
}

// With frozen lower stages, ranks take other turns than the schedule intends.
TEST(Pipeline, ListsFitTogetherIfTheFirstStagesAreFrozen) {
  for (const PipelineInfo& info : pipeline_infos()) {
    for (const int p : {3, 5, 6, 8}) {
      for (const int v : chunks_of(info)) {
        for (const int m : {p, 9, 16}) {
          if (!micros_fault(info.kind, p, m).empty()) continue;
          const Case c{info.kind, p, v, m};
          for (int trained = 1; trained <= p * v; ++trained) {
            const std::vector<StepSpec> specs = chain(c, 1, trained);
            const auto faults = check_ranks(specs, lists_of(specs));
            EXPECT_TRUE(faults.empty()) << c.text() << " " << trained << "\n" << text(faults);
          }
        }
      }
    }
  }
}

// With the first third of the model frozen, and each rank waiting for an output of a frozen stage
// to be received before it sends the third one, ranks 0 and 4 wait for each other, but only if
// messages are not received before they are waited for.
TEST(Pipeline, AWaitThatIsCircularOnlyIfReceivesStartLateIsFound) {
  const std::vector<StepSpec> specs = chain({PipelineKind::kZbInterleaved, 5, 3, 9}, 1, 5);
  std::vector<List> lists = lists_of(specs);
  EXPECT_TRUE(check_ranks(specs, lists).empty());
  for (List& list : lists) {
    for (size_t i = 0; i < list.size(); ++i) {
      const Action send = list[i];
      if (send.kind != ActionKind::kSendCarry || send.stage >= 5 || send.micro < 2) continue;
      const auto free = std::find_if(list.begin(), list.end(), [&](const Action& a) {
        return a.kind == ActionKind::kFreeCarry && a.stage == send.stage &&
               a.micro == send.micro - 2;
      });
      std::rotate(list.begin() + static_cast<long>(i), free, free + 1);
      ++i;
    }
  }
  const auto faults = check_ranks(specs, lists);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(text(faults).find("waits forever"), std::string::npos) << text(faults);
}

TEST(Pipeline, RandomPipelinesFitTogether) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Dice dice(seed);
    const std::vector<StepSpec> specs = random_pipeline(dice);
    const auto faults = check_ranks(specs, lists_of(specs));
    EXPECT_TRUE(faults.empty()) << "seed " << seed << "\n" << text(faults);
  }
}

TEST(Pipeline, NoActionCanBeLeftOutOrDoubled) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    Dice dice(seed);
    const std::vector<StepSpec> specs = random_pipeline(dice);
    for (const StepSpec& spec : specs) {
      const List list = build_schedule(spec);
      for (size_t i = 0; i < list.size(); ++i) {
        List mutant = list;
        mutant.erase(mutant.begin() + static_cast<long>(i));
        EXPECT_FALSE(check_rank(spec, mutant).empty())
            << "seed " << seed << " without " << to_string(list[i]);
        mutant = list;
        mutant.insert(mutant.begin() + static_cast<long>(i), list[i]);
        EXPECT_FALSE(check_rank(spec, mutant).empty())
            << "seed " << seed << " doubled " << to_string(list[i]);
      }
    }
  }
}

// Recompute of a stage needs nothing from other ranks, so it runs while the gradient is under way.
TEST(Pipeline, AStageIsComputedAgainBeforeItsGradientArrives) {
  for (StepSpec& spec : chain({PipelineKind::k1F1B, 4, 1, 8}, 3)) {
    spec.recompute = Recompute::kStages;
    const List list = build_schedule(spec);
    EXPECT_TRUE(check_rank(spec, list).empty());
    int recomputed = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != ActionKind::kRecompute) continue;
      ++recomputed;
      size_t next = i + 1;
      while (list[next].kind == ActionKind::kRecompute) ++next;
      EXPECT_EQ(list[next].kind, ActionKind::kWaitCarryGrad) << to_string(list[next]);
    }
    // On the last rank every backward follows its forward at once.
    EXPECT_EQ(recomputed, spec.pipeline.rank == 3 ? 0 : 3 * 8);
  }
}

TEST(Pipeline, RecomputeNeedsTheInputOfTheStage) {
  std::vector<StepSpec> specs = chain({PipelineKind::kGpipe, 2, 1, 2}, 2);
  specs[0].recompute = Recompute::kStages;
  List list = build_schedule(specs[0]);
  ASSERT_TRUE(check_rank(specs[0], list).empty());
  List mutant = list;
  mutant[0].save = Save::kNothing;
  EXPECT_FALSE(check_rank(specs[0], mutant).empty());
  size_t first = 0;
  while (list[first].kind != ActionKind::kRecompute) ++first;
  std::swap(list[first].block, list[first + 1].block);
  EXPECT_FALSE(check_rank(specs[0], list).empty());
}

size_t find(const List& list, ActionKind kind, int micro) {
  size_t i = 0;
  while (list.at(i).kind != kind || list[i].micro != micro) ++i;
  return i;
}

TEST(Pipeline, AStageMayNotRunBeforeItsInputHasArrived) {
  const std::vector<StepSpec> specs = chain({PipelineKind::k1F1B, 2, 1, 2});
  List list = build_schedule(specs[1]);
  const size_t wait = find(list, ActionKind::kWaitCarry, 0);
  std::swap(list[wait], list[wait + 1]);
  const auto faults = check_rank(specs[1], list);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].rule, CheckedRule::kMessage) << faults[0].text;
}

TEST(Pipeline, AGradientMayNotBeSentBeforeTheBackward) {
  const std::vector<StepSpec> specs = chain({PipelineKind::k1F1B, 2, 1, 2});
  List list = build_schedule(specs[1]);
  const size_t send = find(list, ActionKind::kSendCarryGrad, 0);
  std::swap(list[send], list[send - 1]);
  EXPECT_FALSE(check_rank(specs[1], list).empty());
}

// The receiver expects the messages in another order than they are sent.
TEST(Pipeline, MessagesOfALinkKeepTheirOrder) {
  const std::vector<StepSpec> specs = chain({PipelineKind::kGpipe, 2, 1, 2});
  std::vector<List> lists = lists_of(specs);
  std::swap(lists[1][find(lists[1], ActionKind::kReceiveCarry, 0)].micro,
            lists[1][find(lists[1], ActionKind::kReceiveCarry, 1)].micro);
  const auto faults = check_ranks(specs, lists);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(text(faults).find("meets another message"), std::string::npos) << text(faults);
}

// Rank 0 wants a gradient before it has sent the output that leads to it.
TEST(Pipeline, ACircularWaitIsFound) {
  const std::vector<StepSpec> specs = chain({PipelineKind::kGpipe, 2, 1, 2});
  std::vector<List> lists = lists_of(specs);
  List& list = lists[0];
  const size_t last_send = find(list, ActionKind::kSendCarry, 1);
  const Action send = list[last_send];
  list.erase(list.begin() + static_cast<long>(last_send));
  list.insert(list.begin() + static_cast<long>(find(list, ActionKind::kWaitCarryGrad, 0)) + 1,
              send);
  std::vector<List> gpipe = lists;
  const auto faults = check_ranks(specs, gpipe);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(text(faults).find("waits forever"), std::string::npos) << text(faults);
}

// The gradients of weights are products of activations, so nothing is gathered for them.
TEST(Pipeline, AUnitIsNotGatheredForTheGradientsOfItsWeights) {
  std::vector<StepSpec> specs = chain({PipelineKind::kZbH1, 4, 1, 8}, 2);
  StepSpec& spec = specs[3];
  spec.shards = 2;
  spec.reshard_after_forward = true;
  const List list = build_schedule(spec);
  EXPECT_TRUE(check_rank(spec, list).empty());
  int delayed = 0;  // units that are not whole when the gradients of their weights are computed
  std::vector<bool> whole(spec.units.size(), false);
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i].kind == ActionKind::kWaitUnshard) whole[list[i].unit] = true;
    if (list[i].kind == ActionKind::kReshard) whole[list[i].unit] = false;
    if (list[i].kind != ActionKind::kBackwardWeight) continue;
    EXPECT_NE(list[i - 1].kind, ActionKind::kWaitUnshard) << to_string(list[i]);
    delayed += whole[spec.blocks[list[i].block][0]] ? 0 : 1;
  }
  EXPECT_GT(delayed, 0);
}

// Both ranks of a tied unit add up their gradients before their replicas do.
TEST(Pipeline, ExactSumsExchangeTiedGradientsBeforeTheReplicasAddThem) {
  std::vector<StepSpec> specs = chain({PipelineKind::k1F1B, 2, 1, 2});
  for (int rank = 0; rank < 2; ++rank) {
    specs[rank].units[0].partner = 1 - rank;
    specs[rank].units[0].tied_param = 0;
    specs[rank].replicas = 2;
    specs[rank].exact_sums = true;
  }
  const std::vector<List> lists = lists_of(specs);
  const auto faults = check_ranks(specs, lists);
  EXPECT_TRUE(faults.empty()) << text(faults);
  List list = lists[0];
  const size_t exchange = find(list, ActionKind::kExchangeTied, -1);
  ASSERT_EQ(list[exchange + 1].kind, ActionKind::kAllReduceGrad);
  std::swap(list[exchange], list[exchange + 1]);
  const auto early = check_rank(specs[0], list);
  ASSERT_EQ(early.size(), 1u);
  EXPECT_EQ(early[0].rule, CheckedRule::kTied);
}

TEST(Pipeline, AnEvaluationSendsNoGradients) {
  for (const PipelineInfo& info : pipeline_infos()) {
    std::vector<StepSpec> specs = chain({info.kind, 3, info.chunks, 3});
    for (StepSpec& spec : specs) spec.forward_only = true;
    const std::vector<List> lists = lists_of(specs);
    const auto faults = check_ranks(specs, lists);
    EXPECT_TRUE(faults.empty()) << info.name << "\n" << text(faults);
    for (const List& list : lists) {
      for (const Action& a : list) EXPECT_NE(a.kind, ActionKind::kSendCarryGrad);
    }
  }
}

TEST(Stages, ALoopGoesAroundAndAVeeComesBack) {
  EXPECT_EQ(place_stages(StagePlacement::kLoop, 3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(place_stages(StagePlacement::kVee, 3, 2), (std::vector<int>{0, 1, 2, 2, 1, 0}));
}

TEST(Stages, AHeavyLastBlockGetsLessCompany) {
  const std::vector<double> work{0, 1, 1, 1, 1, 1, 1, 3};
  const Stages stages = cut_by_work({0, 1, 2}, work);
  EXPECT_EQ(stages.first_block, (std::vector<int>{0, 4, 7, 8}));
  EXPECT_DOUBLE_EQ(load_of_worst_rank(stages, work), 1);
}

// Compares with the best of all cuts.
TEST(Stages, NoOtherCutOfOneStageForEachRankIsBetter) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    std::vector<double> work(dice.roll(4, 9));
    for (double& w : work) w = dice.roll(0, 9);
    const int n = static_cast<int>(work.size());
    const std::vector<int> rank_of{0, 1, 2, 3};
    double best = 1e9;
    for (int a = 1; a < n; ++a) {
      for (int b = a + 1; b < n; ++b) {
        for (int c = b + 1; c < n; ++c)
          best = std::min(best, load_of_worst_rank({rank_of, {0, a, b, c, n}}, work));
      }
    }
    EXPECT_DOUBLE_EQ(load_of_worst_rank(cut_by_work(rank_of, work), work), best) << seed;
  }
}

TEST(Stages, ARankSeesItsNeighbours) {
  const Stages stages = cut_by_sizes({0, 1, 1, 0}, {1, 2, 3, 4});
  const std::vector<OwnStage> own = own_stages(stages, 0);
  ASSERT_EQ(own.size(), 2u);
  EXPECT_EQ(own[1].index, 3);
  EXPECT_EQ(own[1].first, 1);
  EXPECT_EQ(own[1].end, 5);
  EXPECT_EQ(own[1].from, 1);
  EXPECT_EQ(own[1].to, OwnStage::kNoRank);
  EXPECT_EQ(stages.blocks_of(0), (std::vector<int>{0, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace yoke::mesh
