// Reads YAML files of nanotron. The expected messages are those that users see.
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
using ::testing::Not;
using ::testing::SizeIs;

TEST(File, IsRefusedWithTheReason) {
  const Case cases[] = {
      {"zero_stage: 0", "zero_stag: 0", "config.file:18: optimizer.zero_stag = 0"},
      {"zero_stage: 0", "zero_stag: 0", "nanotron has no such key; did you mean 'zero_stage'?"},
      {"tokens:", "token: {}\ntokens:", "config.file:12: token = {}"},
      {"zero_stage: 0", "zero_stage: 2", "zero_stage = 2; allowed: 0,1"},
      {"zero_stage: 0", "zero_stage: 0\n  zero_stage: 0", "given twice"},
      {"zero_stage: 0", "zero_stage: one", "zero_stage = one; allowed: one whole number"},
      {"zero_stage: 0", "zero_stage: '0'", "zero_stage = 0; allowed: one whole number"},
      {"1.0e-08", "1e-8", "write it with a dot and a signed exponent, such as 1.0e-08"},
      {"1.0e-08", "1.0e8", "YAML reads it as a word"},
      {"clip_grad: 1.0", "clip_grad: '1.0'", "in quotes it is a word"},
      {"accumulate_grad_in_fp32: false", "accumulate_grad_in_fp32: fAlse", "allowed: true, false"},
      {"accumulate_grad_in_fp32: false",
       "accumulate_grad_in_fp32: true",
       "it needs model.dtype bfloat16, as in nanotron"},
      {"optimizer:", "optimizer: []\nlighteval: 3\ncheckpoints:", "lighteval = 3; allowed: a map"},
      {"float32", "float16", "model.dtype = float16; allowed: bfloat16,float32,float64"},
      {"hidden_size: 64", "hidden_size: 64\n    hidden_act: gelu", "allowed: silu"},
      {"hidden_size: 64", "hidden_size: 64\n    is_starcoder2_config: true", "another model"},
      {"hidden_size: 64", "hidden_size: 64\n    attention_bias: yes", "the model has no biases"},
      {"hidden_size: 64", "hidden_size: 64\n    rope_scaling: {a: 1}", "rope_scaling = {...}"},
      {"hidden_size: 64", "hidden_size: 64\n    moe_config: {num_experts: 8}", "mixtures"},
      {"dtype: float32", "dtype: float32\n  init_method: {std: 0.01}", "allowed: 0.02"},
      {"dtype: float32", "dtype: float32\n  init_method: {use_mup: true}", "muP"},
      {"pp: 1", "pp: 1, expert_parallel_size: 2", "mixtures of experts are not supported"},
      {"name: adamW", "name: sgd", "with sgd the decay of nanotron is not decoupled"},
      {"name: adamW", "name: lamb", "name = lamb; allowed: adamW,sgd"},
      {"vocab_size: 1024", "vocab_size: 9223372036854775807", "allowed: 1 to 1000000"},
      {"num_hidden_layers: 2", "num_hidden_layers: 1000000000000", "allowed: 1 to 1000000"},
      {"dtype: float32",
       "dtype: float32\n  ddp_bucket_cap_mb: 0",
       "ddp_bucket_cap_mb = 0; allowed"},
      {"train_steps: 20", "train_steps: 9223372036854775807", "it is a number of steps"},
      {"micro_batch_size: 2", "micro_batch_size: 0", "micro_batch_size = 0; allowed: 1 to 1000000"},
      {"tokens:", "s3_upload: {upload_s3_path: s3://a}\ntokens:", "remove s3_upload"},
      {"tokens:",
       "data_stages: [{name: a, start_training_step: 1}, {name: b, start_training_step: 9}]\n"
       "tokens:",
       "a run has one stage of data"},
      {"tokens:", "data_stages: 3\ntokens:", "data_stages = 3; allowed: a list of maps"},
      {"tokens:", "data: {seed: 1}\ntokens:", "0.4 does not have config.file:23: optimizer."},
      {"parallelism: {dp: 2",
       "parallelism: {dp: 4",
       "the run has 2 data rank(s); change one of them"},
  };
  for (const Case& c : cases) {
    PlanRequest request;
    request.replace(c.from, c.to);
    EXPECT_THAT(request.ask(), Contains(AllOf(HasSubstr(c.message), Not(HasSubstr("note:")))))
        << c.to;
  }
}

TEST(File, ThatIsNotOfNanotronIsRefusedAsAWhole) {
  const Case cases[] = {
      {"", "- a\n", "the file holds no map of keys"},
      {"",
       "compute_environment: LOCAL_MACHINE\n",
       "neither of the sections parallelism and tokens"},
      {"", "a: [1\n", "config.file, line "},
      {"", "a: *b\n", "config.file, line 1: "},
  };
  for (const Case& c : cases) {
    PlanRequest request;
    request.file = c.to;
    EXPECT_THAT(
        request.ask(),
        ElementsAre(AllOf(HasSubstr("nanotron_compat.config = config.file"), HasSubstr(c.message))))
        << c.to;
  }
}

TEST(File, NamesAllMissingKeysAtOnce) {
  PlanRequest request;
  request.replace("  zero_stage: 0\n", "");
  request.replace("  train_steps: 20\n", "");
  request.replace("adam_beta2: 0.95, ", "");
  request.replace("    lr_warmup_style: constant\n", "");
  EXPECT_THAT(request.ask(),
              Contains(HasSubstr("allowed: tokens.train_steps, optimizer.zero_stage, "
                                 "optimizer.learning_rate_scheduler.lr_warmup_style, "
                                 "optimizer.optimizer_factory.adam_beta2")));
}

TEST(File, ShowsSeveralFaultsTogether) {
  PlanRequest request;
  request.replace("zero_stage: 0", "zero_stage: 3");
  request.replace("dp: 2", "dp: 2, ep: 1");
  request.replace("clip_grad: 1.0", "clip_grad: 2.0");
  EXPECT_THAT(request.ask(), SizeIs(3));
}

TEST(File, IsAcceptedWithANoteWhereAKeyHasNoEffect) {
  const Case cases[] = {
      {"tokens:",
       "lighteval: {batch_size: 4}\ntokens:",
       "note: config.file:12: lighteval.batch_size = 4; no effect: evaluation is by another "
       "program"},
      {"pp: 1", "pp: 1, pp_engine: 1f1b", "no effect with pp_degree = 1"},
      {"pp: 1", "pp: 1, tp_linear_async_communication: true", "no effect: decides when"},
      {"tokens:",
       "data_stages: [{data: {dataset: {hf_dataset_or_datasets: {a: 1}}}}]\ntokens:",
       "data_stages[].data.dataset.hf_dataset_or_datasets = {...}; text of the Hub is not read; "
       "set data.path"},
  };
  for (const Case& c : cases) {
    PlanRequest request;
    request.replace(c.from, c.to);
    EXPECT_THAT(request.ask(), ElementsAre(AllOf(HasSubstr("note: "), HasSubstr(c.message))));
  }
}

TEST(File, MayLeaveSectionsAndRefusedKeysEmpty) {
  PlanRequest request("lighteval: null\nprofiler:\ns3_upload: ~\ngeneral: {}\ndata_stages: []\n");
  request.replace("hidden_size: 64", "hidden_size: 64\n    rope_scaling: null\n    pad_token_id:");
  request.replace("clip_grad: 1.0", "clip_grad: null");
  request.plan.optimizer.clip = 0;
  EXPECT_THAT(request.ask(), IsEmpty());
}

TEST(File, OfNanotron04IsNamedAndRead) {
  PlanRequest request("data: {seed: 1, dataset: {text_column_name: text}}\n");
  request.replace(
      "  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: ",
      "  adam_beta1: 0.9\n  adam_beta2: 0.95\n  adam_eps: ");
  request.replace("1.0e-08}", "1.0e-08");
  EXPECT_THAT(request.ask(),
              ElementsAre(HasSubstr("note: config.file:28: data.seed = 1; it acts only with"),
                          HasSubstr("note: config.file:28: data.dataset.text_column_name = text"),
                          AllOf(HasSubstr("note: config.file:28: data = nanotron 0.4"),
                                HasSubstr("the file is read as one of nanotron 0.4"))));
  EXPECT_EQ(request.line("train.betas"), "[0.9, 0.95]");
  EXPECT_EQ(request.line("train.eps"), "1e-08");
}

TEST(File, WithOtherPatternsThanOfNormsIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"('.*decoder.1.*norm.*')", "all parameters decay, or all but the norms"},
      {R"('.*embedding.*')", "all parameters decay, or all but the norms"},
      {R"('[')", "'[' is none"},
      {R"('(a*)*b')", "allowed: up to 100 characters without groups"},
  };
  for (const auto& [pattern, message] : cases) {
    PlanRequest request;
    request.exclude_from_decay(pattern);
    EXPECT_THAT(request.ask(), Contains(HasSubstr(message))) << pattern;
  }
}

TEST(File, WithPatternsHasAtMost10000Layers) {
  PlanRequest request;
  request.exclude_from_decay("'.*norm.*'");
  request.replace("hidden_layers: 2", "hidden_layers: 10001");
  EXPECT_THAT(request.ask(), Contains(HasSubstr("num_hidden_layers = 10001; allowed: 1 to 10000")));
}

TEST(File, MayHoldANumberOfAnyLength) {
  PlanRequest request;
  request.replace("clip_grad: 1.0", "clip_grad: 1." + std::string(60'000, '0'));
  EXPECT_THAT(request.ask(), IsEmpty());
}

TEST(File, WithSgdAsksForSgdWithoutMomentum) {
  PlanRequest request;
  request.replace("name: adamW", "name: sgd");
  request.replace("weight_decay: 0.1", "weight_decay: 0.0");
  request.plan.optimizer.kind = YOKE_SGD;
  request.plan.optimizer.weight_decay = 0;
  request.plan.optimizer.momentum = 0.9;
  EXPECT_THAT(request.ask(), ElementsAre(HasSubstr("train.momentum = 0, but the run has 0.9")));
}

TEST(File, MayExcludeNormsFromDecay) {
  PlanRequest request;
  request.exclude_from_decay("'.*norm.*'");
  EXPECT_THAT(request.ask(),
              ElementsAre(HasSubstr("train.decay = \"matrices\", but the run has \"all\"")));
  request.dims.decay_matrices = true;
  EXPECT_THAT(request.ask(), IsEmpty());
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
