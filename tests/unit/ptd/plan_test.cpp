#include "plugins/ptd/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A plan for `world` ranks in which only the given degrees (dp_replicate, dp_shard) are set.
struct Asked {
  Asked(int world, std::pair<int, int> degrees)
      : optimizer(optimizer_of(job)), plan(plan_of(job, optimizer)) {
    plan.world_size = world;
    for (int32_t& degree : plan.degree) degree = 0;
    plan.degree[YOKE_DP_REPLICATE] = degrees.first;
    plan.degree[YOKE_DP_SHARD] = degrees.second;
  }
  std::vector<std::string> ask(const std::vector<std::string>& given = {}) {
    return ask_plan(job, plan, given);
  }

  Job job;
  YokeOptimizer optimizer;
  YokePlan plan;
};

TEST(Plan, WhatIsLeftOfTheWorldGoesIntoShards) {
  Asked alone(8, {0, 0});
  EXPECT_THAT(alone.ask(), IsEmpty());
  EXPECT_EQ(alone.plan.degree[YOKE_DP_SHARD], 8);
  EXPECT_EQ(alone.plan.degree[YOKE_TP], 1);
  Asked replicated(8, {2, 0});
  EXPECT_THAT(replicated.ask(), IsEmpty());
  EXPECT_EQ(replicated.plan.degree[YOKE_DP_SHARD], 4);
}

TEST(Plan, GivenDegreesStay) {
  Asked hsdp(4, {2, 2});
  EXPECT_THAT(hsdp.ask(), IsEmpty());
  EXPECT_EQ(hsdp.plan.degree[YOKE_DP_REPLICATE], 2);
}

TEST(Plan, AProductThatIsNotTheWorldIsRefusedWithTheArithmetic) {
  Asked wrong(4, {2, 3});
  EXPECT_THAT(wrong.ask(),
              ElementsAre(HasSubstr("dp_degree 2 x dp_shards 3 = 6, but the run has 4 rank(s)")));
}

TEST(Plan, ReplicasMustDivideTheWorld) {
  Asked wrong(4, {3, 0});
  EXPECT_THAT(
      wrong.ask(),
      ElementsAre(HasSubstr("dp_degree = 3; allowed: degrees whose product divides the 4 ranks")));
}

TEST(Plan, EveryReasonIsGivenAtOnce) {
  Asked wrong(4, {0, 0});
  wrong.plan.degree[YOKE_TP] = 2;
  wrong.plan.param_dtype = YOKE_I32;
  EXPECT_THAT(wrong.ask(),
              ElementsAre(HasSubstr("tp_degree = 2"),
                          AllOf(HasSubstr("precision.param = int32"),
                                HasSubstr("bf16, fp16, fp32, fp64"))));
}

TEST(Plan, GradientsAreReducedInFp32OrBetterUnlessBf16IsAskedFor) {
  for (const int32_t param : {YOKE_BF16, YOKE_F16, YOKE_F32, YOKE_F64}) {
    Asked unset(1, {0, 0});
    unset.plan.param_dtype = param;
    unset.plan.reduce_dtype = 0;
    EXPECT_THAT(unset.ask(), IsEmpty());
    EXPECT_EQ(unset.plan.reduce_dtype, param == YOKE_F64 ? YOKE_F64 : YOKE_F32);
  }
  Asked narrow(1, {0, 0});
  narrow.plan.param_dtype = narrow.plan.reduce_dtype = YOKE_BF16;
  EXPECT_THAT(narrow.ask(), IsEmpty());
  narrow.plan.param_dtype = YOKE_F16;
  EXPECT_THAT(narrow.ask(),
              ElementsAre(HasSubstr("precision.reduce = bf16; allowed: fp16, fp32, fp64")));
}

TEST(Plan, GradientsAreNotReducedInLessThanTheComputeType) {
  Asked wrong(1, {0, 0});
  wrong.plan.reduce_dtype = YOKE_F32;
  EXPECT_THAT(
      wrong.ask(),
      ElementsAre(AllOf(HasSubstr("precision.reduce = fp32"), HasSubstr("allowed: fp64;"))));
}

// Returns ptd's refusals for a transformer with 4 key heads, whose blocks share all parameters.
std::vector<std::string> refusals_of_transformer(int cp,
                                                 int tp,
                                                 int64_t seq_len,
                                                 int32_t cut = 1,
                                                 std::map<std::string, std::string> options = {},
                                                 int num_blocks = 1) {
  const int64_t shape[] = {32, 8};
  YokeParameter k{};
  k.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
  k.name = view("k_proj.weight");
  k.shape = shape;
  k.ndim = 2;
  k.dtype = YOKE_F64;
  k.trainable = 1;
  k.tp_cut = cut;
  k.tp_parts = 4;
  YokeParameter norm = k;
  norm.name = view("norm.weight");
  norm.ndim = 1;
  norm.tp_cut = YOKE_TP_WHOLE;
  const YokeParameter* params[] = {&k, &norm};
  const int64_t of_block[] = {0, 1};
  YokeBlock block{};
  block.header = YOKE_HEADER(YokeBlock, YOKE_ID_BLOCK);
  block.name = view("layer");
  block.params = of_block;
  block.num_params = 2;
  const YokeBlock* blocks[] = {&block, &block, &block};
  YokeModelSummary model{};
  model.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  model.params = params;
  model.num_params = 2;
  model.blocks = blocks;
  model.num_blocks = num_blocks;
  model.seq_len = seq_len;
  Job job;
  const YokeOptimizer optimizer = optimizer_of(job);
  YokePlan plan = plan_of(job, optimizer);
  plan.world_size = cp * tp;
  plan.degree[YOKE_CP] = cp;
  plan.degree[YOKE_TP] = tp;
  return ask_plan(model, options, plan);
}

TEST(Plan, TensorParallelismDividesHeadsAndSequences) {
  EXPECT_THAT(refusals_of_transformer(1, 2, 64), IsEmpty());
  EXPECT_THAT(refusals_of_transformer(1, 8, 64),
              ElementsAre(AllOf(HasSubstr("tp_degree = 8; allowed: 1, 2, 4"),
                                HasSubstr("'k_proj.weight' consists of 4 parts"))));
  EXPECT_THAT(refusals_of_transformer(1, 2, 63),
              ElementsAre(AllOf(HasSubstr("tp_degree = 2"), HasSubstr("data.seq_len = 63"))));
  EXPECT_THAT(refusals_of_transformer(1, 2, 63, 1, {{"sequence_parallel", "false"}}), IsEmpty());
}

TEST(Plan, PiecesNeedSequenceParallelism) {
  EXPECT_THAT(refusals_of_transformer(1, 2, 64, 1, {{"tp_pieces", "3"}}), IsEmpty());
  EXPECT_THAT(
      refusals_of_transformer(1, 2, 64, 1, {{"tp_pieces", "3"}, {"sequence_parallel", "false"}}),
      ElementsAre(AllOf(HasSubstr("ptd.tp_pieces = 3; allowed: 1 with"),
                        HasSubstr("set ptd.sequence_parallel = true"))));
  EXPECT_THAT(
      refusals_of_transformer(1, 1, 64, 1, {{"tp_pieces", "3"}, {"sequence_parallel", "false"}}),
      IsEmpty());
}

TEST(Plan, TensorParallelismNeedsHints) {
  EXPECT_THAT(refusals_of_transformer(1, 2, 64, 0),
              ElementsAre(AllOf(HasSubstr("does not say how parameter 'k_proj.weight' may be cut"),
                                HasSubstr("BlockList::tp"))));
}

TEST(Plan, ContextParallelismDividesTheSequence) {
  EXPECT_THAT(refusals_of_transformer(4, 1, 64), IsEmpty());
  EXPECT_THAT(refusals_of_transformer(4, 1, 68),
              ElementsAre(AllOf(HasSubstr("cp_degree = 4"), HasSubstr("ptd.cp_order"))));
  EXPECT_THAT(refusals_of_transformer(4, 1, 68, 1, {{"cp_order", "plain"}}), IsEmpty());
  EXPECT_THAT(refusals_of_transformer(4, 1, 64, 1, {{"cuda_graph", "true"}}),
              ElementsAre(HasSubstr("cannot be recorded yet")));
  EXPECT_THAT(refusals_of_transformer(2, 1, 0),
              ElementsAre(HasSubstr("the inputs of this model are not sequences")));
}

// Returns ptd's notes about a pipeline of two ranks over four blocks with equal matrices.
std::vector<std::string> notes_about_cut(const std::vector<double>& flops,
                                         uint32_t block_size = sizeof(YokeBlock),
                                         int pp = 2) {
  const int64_t shape[] = {8, 8};
  YokeParameter matrix{};
  matrix.header = YOKE_HEADER(YokeParameter, YOKE_ID_PARAMETER);
  matrix.name = view("matrix");
  matrix.shape = shape;
  matrix.ndim = 2;
  matrix.dtype = YOKE_F64;
  matrix.trainable = 1;
  const YokeParameter* params[] = {&matrix, &matrix, &matrix, &matrix};
  const int64_t of_block[] = {0, 1, 2, 3};
  YokeBlock blocks[4];
  const YokeBlock* pointers[] = {&blocks[0], &blocks[1], &blocks[2], &blocks[3]};
  for (size_t b = 0; b < 4; ++b) {
    blocks[b] = YokeBlock{};
    blocks[b].header = {block_size, YOKE_ID_BLOCK, nullptr};
    blocks[b].name = view("layer");
    blocks[b].params = &of_block[b];
    blocks[b].num_params = 1;
    blocks[b].activation_bytes = blocks[b].carry_bytes = -1;
    blocks[b].forward_flops = flops[b];
  }
  YokeModelSummary model{};
  model.header = YOKE_HEADER(YokeModelSummary, YOKE_ID_MODEL_SUMMARY);
  model.params = params;
  model.num_params = 4;
  model.blocks = pointers;
  model.num_blocks = 4;
  model.more_blocks = view("model.blocks = half");
  Job job;
  job.pp = pp;
  job.accumulation = 8;  // ranks are idle for a small part of a step, which needs no note
  const YokeOptimizer optimizer = optimizer_of(job);
  YokePlan plan = plan_of(job, optimizer);
  return ask_plan(model, {}, plan);
}

TEST(Plan, APipelineIsCutByFlopsIfAllBlocksDeclareThem) {
  EXPECT_THAT(notes_about_cut({1, 1, 1, 9}),
              ElementsAre(AllOf(HasSubstr("ptd.pp_cut = 3,1"), HasSubstr("150 %"))));
  EXPECT_THAT(notes_about_cut({0, 4, 4, 0}), IsEmpty());
}

TEST(Plan, TooFewBlocksForAPipelineAreRefusedWithTheWayToMore) {
  EXPECT_THAT(notes_about_cut({1, 1, 1, 1}, sizeof(YokeBlock), 5),
              ElementsAre(AllOf(HasSubstr("pp_degree = 5; allowed: 1 to 4"),
                                HasSubstr("the model has 4, and more with model.blocks = half"))));
}

// The elements of the matrices are equal.
TEST(Plan, APipelineIsCutByElementsIfTheFlopsOfABlockAreUnknown) {
  EXPECT_THAT(notes_about_cut({-1, 1, 1, 9}), IsEmpty());
  EXPECT_THAT(notes_about_cut({0, 0, 0, 0}), IsEmpty()) << "a host that does not set the field";
  const uint32_t size_in_1_0 = offsetof(YokeBlock, forward_flops);
  EXPECT_THAT(notes_about_cut({1, 1, 1, 9}, size_in_1_0), IsEmpty()) << "a host of version 1.0";
}

// Returns the refusals of exact sums with these degrees of dp_replicate and dp_shard.
std::vector<std::string> refusals_of_exact_sums(std::pair<int, int> degrees,
                                                int cp = 1,
                                                const char* shard_over_cp = "false") {
  Asked asked(degrees.first * degrees.second * cp, degrees);
  asked.job.options["exact_sums"] = "true";
  asked.job.options["shard_over_cp"] = shard_over_cp;
  asked.plan.degree[YOKE_CP] = cp;
  std::vector<std::string> texts = asked.ask();
  texts.erase(std::remove_if(texts.begin(),
                             texts.end(),
                             [](const std::string& t) { return t.rfind("ptd.exact", 0) != 0; }),
              texts.end());
  return texts;
}

TEST(Plan, ExactSumsNeedWholeParametersAndAtMostTwoCopies) {
  EXPECT_THAT(refusals_of_exact_sums({1, 1}), IsEmpty());
  EXPECT_THAT(refusals_of_exact_sums({2, 1}), IsEmpty());
  EXPECT_THAT(refusals_of_exact_sums({1, 1}, 2), IsEmpty());
  EXPECT_THAT(refusals_of_exact_sums({1, 2}),
              ElementsAre(AllOf(HasSubstr("ptd.exact_sums = true; allowed: false"),
                                HasSubstr("dp_shards = 2"))));
  EXPECT_THAT(refusals_of_exact_sums({1, 1}, 2, "true"),
              ElementsAre(HasSubstr("ptd.shard_over_cp = false")));
  EXPECT_THAT(refusals_of_exact_sums({2, 1}, 2),
              ElementsAre(HasSubstr("dp_degree 2 x cp_degree 2 = 4")));
  EXPECT_THAT(refusals_of_transformer(1, 2, 64, 1, {{"exact_sums", "true"}}),
              ElementsAre(HasSubstr("tp_degree = 2")));
}

TEST(Plan, ExactSumsAllowAParameterInTwoBlocks) {
  EXPECT_THAT(refusals_of_transformer(1, 1, 64, 1, {{"exact_sums", "true"}}, 2), IsEmpty());
  EXPECT_THAT(refusals_of_transformer(1, 1, 64, 1, {{"exact_sums", "true"}}, 3),
              ElementsAre(HasSubstr("more than two blocks use parameter 'k_proj.weight'")));
  EXPECT_THAT(refusals_of_transformer(1, 1, 64, 1, {}, 3), IsEmpty());
}

TEST(Plan, ExactSumsNeedAnOrderFileWithAscendingMicroBatches) {
  const std::string path = ::testing::TempDir() + "ptd_plan_test_order.csv";
  std::ofstream(path) << "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n";
  for (const char* exact : {"false", "true"}) {
    Asked asked(2, {1, 1});
    asked.plan.degree[YOKE_PP] = 2;
    asked.plan.micro_batch = 4;
    asked.job.options["exact_sums"] = exact;
    asked.job.options["pp_schedule_file"] = path;
    std::vector<std::string> texts = asked.ask();
    texts.erase(std::remove_if(texts.begin(),
                               texts.end(),
                               [](const std::string& t) { return t.rfind("note", 0) == 0; }),
                texts.end());
    if (std::string(exact) == "true") {
      EXPECT_THAT(texts, ElementsAre(AllOf(HasSubstr("pp_schedule_file"), HasSubstr("0B0"))));
    } else {
      EXPECT_THAT(texts, IsEmpty());
    }
  }
}

// Rank 2 receives from rank 0 and sends to rank 3 in the same communicator.
TEST(Plan, AnOrderFileThatWouldHangOverNcclIsRefused) {
  const std::string path = ::testing::TempDir() + "ptd_plan_test_hang.csv";
  std::ofstream(path) << "0F0,4F0,4B0,0B0\n3F0,3B0\n1F0,5F0,5B0,1B0\n2F0,2B0\n";
  Asked asked(4, {1, 1});
  asked.plan.degree[YOKE_PP] = 4;
  asked.plan.micro_batch = static_cast<int32_t>(asked.plan.global_batch);
  asked.job.model.layers = 4;  // six blocks
  asked.job.options["pp_schedule_file"] = path;
  EXPECT_THAT(asked.ask(),
              Contains(AllOf(HasSubstr("ptd.pp_schedule_file"), HasSubstr("waits forever"))));
}

TEST(Plan, AnOptionWithoutEffectIsNoted) {
  Asked alone(1, {0, 0});
  EXPECT_THAT(alone.ask({"reshard_after_forward"}),
              ElementsAre(AllOf(HasSubstr("note: ptd.reshard_after_forward = true"),
                                HasSubstr("no effect"))));
  EXPECT_THAT(alone.ask({"pp_whole"}), ElementsAre(HasSubstr("no effect with pp_degree = 1")));
  alone.job.options["tp_pieces"] = "2";
  EXPECT_THAT(alone.ask({"tp_pieces"}),
              ElementsAre(AllOf(HasSubstr("ptd.tp_pieces = 2"),
                                HasSubstr("no effect with tp_degree = 1"))));
  alone.job.options["activation_checkpoint"] = "stage";
  EXPECT_THAT(alone.ask({"activation_checkpoint"}), ElementsAre(HasSubstr("nothing to recompute")));
  Asked pipeline(4, {1, 2});
  pipeline.plan.degree[YOKE_PP] = 2;
  pipeline.plan.micro_batch = 1;
  pipeline.job.options["pp_whole"] = "1";
  EXPECT_THAT(pipeline.ask({"pp_whole"}), Contains(HasSubstr("no rank has more stages")));
  pipeline.job.options["reshard_after_forward"] = "true";
  pipeline.job.options["accumulate"] = "sharded";
  EXPECT_THAT(pipeline.ask({"pp_whole", "reshard_after_forward", "accumulate"}),
              Contains(HasSubstr("with reshard_after_forward = true")));
}

}  // namespace
}  // namespace yoke::ptd::testing
