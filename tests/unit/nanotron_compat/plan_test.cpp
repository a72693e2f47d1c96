// How a YAML file of nanotron and a run become a plan, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/nanotron_compat/plan_request.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Plan, AcceptsARunThatAgreesWithItsFile) {
  PlanRequest request;
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.degree(YOKE_DP_REPLICATE), 2);
  EXPECT_EQ(request.degree(YOKE_DP_SHARD), 1);
  EXPECT_EQ(request.plan.plan.micro_batch, 2);
  EXPECT_EQ(request.plan.plan.reduce_dtype, YOKE_F32);
  PlanRequest zero;
  zero.replace("zero_stage: 0", "zero_stage: 1");
  EXPECT_THAT(zero.ask(), IsEmpty());
  EXPECT_EQ(zero.degree(YOKE_DP_REPLICATE), 1);
  EXPECT_EQ(zero.degree(YOKE_DP_SHARD), 2);
}

TEST(Plan, NeedsNoFile) {
  PlanRequest request;
  request.file = "";
  request.options["zero_stage"] = "1";
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_THAT(request.lines, IsEmpty());
  EXPECT_EQ(request.degree(YOKE_DP_SHARD), 2);
}

TEST(Plan, TranslatesTheWholeFile) {
  PlanRequest request(
      "checkpoints: {checkpoint_interval: 10, checkpoints_path: x}\n"
      "general: {seed: 7}\nlogging: {iteration_step_info_interval: 5}\n");
  request.ask();
  EXPECT_THAT(request.lines,
              ElementsAre("parallel_backend = \"nanotron_compat\"",
                          "dp_degree = 2",
                          "dp_shards = 1",
                          "nanotron_compat.zero_stage = 0",
                          "nanotron_compat.accumulate_grad_in_fp32 = false",
                          "nanotron_compat.loss = \"mean_of_means\"",
                          "model.layers = 2",
                          "model.dim = 64",
                          "model.heads = 8",
                          "model.kv_heads = 4",
                          "model.ffn_dim = 256",
                          "model.vocab = 1024",
                          "model.tied = false",
                          "model.rope_theta = 10000",
                          "model.norm_eps = 1e-05",
                          "data.seq_len = 64",
                          "train.micro_batch = 2",
                          "train.global_batch = 8",
                          "train.optimizer = \"adamw\"",
                          "train.betas = [0.9, 0.95]",
                          "train.eps = 1e-08",
                          "train.weight_decay = 0.1",
                          "train.decay = \"all\"",
                          "train.clip = 1",
                          "precision.param = \"fp32\"",
                          "train.steps = 20",
                          "train.lr = 0.001",
                          "train.warmup = 0",
                          "train.schedule = \"constant\"",
                          "checkpoint.every = 10",
                          "seed = 7",
                          "metrics.every = 5"));
}

TEST(Plan, TranslatesModelParallelism) {
  PlanRequest request;
  request.replace("tp: 1, pp: 1", "tp: 2, pp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER");
  request.plan.plan.world_size = 8;
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.plan.plan.degree[YOKE_TP], 2);
  EXPECT_EQ(request.plan.plan.degree[YOKE_PP], 2);
  EXPECT_EQ(request.line("parallel_backend"), "\"nanotron_compat\"");
  EXPECT_EQ(request.line("tp_degree"), "2");
  EXPECT_EQ(request.line("pp_degree"), "2");
  EXPECT_EQ(request.line("dp_degree"), "2");
  EXPECT_EQ(request.line("nanotron_compat.tp_mode"), "\"REDUCE_SCATTER\"");
  EXPECT_EQ(request.line("nanotron_compat.pp_engine"), "\"1f1b\"");
}

TEST(Plan, PadsTheVocabulary) {
  PlanRequest request;
  request.replace("vocab_size: 1024", "vocab_size: 1000");
  request.replace("model:\n", "model:\n  make_vocab_size_divisible_by: 512\n");
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.line("model.vocab"), "1024");
}

// ---- The file and the run ----

TEST(Run, ThatDiffersFromTheFileIsRefusedWithBothValues) {
  const Case cases[] = {
      {"num_hidden_layers: 2", "num_hidden_layers: 3", "model.layers = 3, but the run has 2"},
      {"hidden_size: 64", "hidden_size: 128", "it means model.dim = 128, but the run has 64"},
      {"intermediate_size: 256\n", "is_llama_config: true\n", "model.ffn_dim = 11008, but the run"},
      {"    num_key_value_heads: 4\n", "", "model.kv_heads = 8, but the run has 4"},
      {"rms_norm_eps", "tie_word_embeddings: true\n    rms_norm_eps", "model.tied = true, but"},
      {"vocab_size: 1024", "vocab_size: 1000", "model.vocab = 1000, but the run has 1024"},
      {"sequence_length: 64", "sequence_length: 32", "data.seq_len = 32, but the run has 64"},
      {"per_replica: 2", "per_replica: 4", "train.global_batch = 16, but the run has 8"},
      {"adam_beta2: 0.95", "adam_beta2: 0.999", "train.betas = [0.9, 0.999], but the run has"},
      {"1.0e-08", "1.0e-06", "train.eps = 1e-06, but the run has 1e-08"},
      {"weight_decay: 0.1", "weight_decay: 0.2", "train.weight_decay = 0.2, but the run has 0.1"},
      {"clip_grad: 1.0", "clip_grad: 0.5", "it means train.clip = 0.5, but the run has 1"},
      {"clip_grad: 1.0", "clip_grad: 0.0", "clip_grad = 0.0; allowed: null, a number above 0"},
      {"clip_grad: 1.0", "clip_grad: -1.0", "clip_grad = -1.0; allowed: null, a number above 0"},
      {"  dtype: float32\n", "", "precision.param = \"bf16\", but the run has \"fp32\""},
      {"name: adamW", "name: sgd", "train.optimizer = \"sgd\", but the run has \"adamw\""},
  };
  for (const Case& c : cases) {
    PlanRequest request;
    request.replace(c.from, c.to);
    EXPECT_THAT(request.ask(), Contains(HasSubstr(c.message))) << c.to;
  }
}

TEST(Run, InBf16AddsInTheDtypeThatTheFileNames) {
  for (const bool wide : {false, true}) {
    PlanRequest request;
    request.replace("float32", "bfloat16");
    if (wide) request.replace("in_fp32: false", "in_fp32: true");
    request.plan.plan.param_dtype = YOKE_BF16;
    const auto note = HasSubstr("the parameters have fp32 copies");
    if (wide) {
      EXPECT_THAT(request.ask(), IsEmpty());
    } else {
      EXPECT_THAT(request.ask(), ElementsAre(note));
    }
    EXPECT_EQ(request.plan.plan.reduce_dtype, wide ? YOKE_F32 : YOKE_BF16);
    request.plan.plan.reduce_dtype = wide ? YOKE_BF16 : YOKE_F32;
    EXPECT_THAT(request.ask(), Contains(HasSubstr("it means precision.reduce = ")));
  }
  PlanRequest fp64;
  fp64.plan.plan.param_dtype = YOKE_F64;
  EXPECT_THAT(fp64.ask(), IsEmpty());
  fp64.plan.plan.reduce_dtype = YOKE_F32;
  EXPECT_THAT(fp64.ask(), ElementsAre(HasSubstr("precision.reduce = fp32; allowed: fp64; ")));
  PlanRequest inline_key;
  inline_key.file = "";
  inline_key.options["accumulate_grad_in_fp32"] = "true";
  EXPECT_THAT(inline_key.ask(), ElementsAre(HasSubstr("it needs precision.param = \"bf16\"")));
  inline_key.plan.plan.param_dtype = inline_key.plan.plan.reduce_dtype = YOKE_BF16;
  EXPECT_THAT(inline_key.ask(),
              ElementsAre(HasSubstr("allowed: false; the run has precision.reduce = \"bf16\"")));
}

TEST(Run, MayRepeatAKeyOfTheFileButNotChangeIt) {
  PlanRequest request;
  request.options["zero_stage"] = "0";
  EXPECT_THAT(request.ask(), IsEmpty());
  request.options["zero_stage"] = "1";
  EXPECT_THAT(request.ask(),
              Contains(HasSubstr("nanotron_compat.zero_stage = 1; allowed: 0; it is given twice")));
}

TEST(Run, WithOtherDegreesIsRefused) {
  PlanRequest shards;
  shards.plan.plan.degree[YOKE_DP_REPLICATE] = 1;
  shards.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(shards.ask(), Contains(HasSubstr("all of them belong to dp_degree")));
  PlanRequest tp;
  tp.plan.plan.degree[YOKE_TP] = 2;
  EXPECT_THAT(tp.ask(),
              Contains(HasSubstr("parallelism.tp = 1; allowed: 2; the run has tp_degree = 2")));
  PlanRequest lion;
  lion.plan.optimizer.kind = YOKE_LION;
  EXPECT_THAT(lion.ask(), Contains(HasSubstr("train.optimizer = lion; allowed: adamw, sgd")));
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
