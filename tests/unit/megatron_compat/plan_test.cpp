// How a Megatron command line and a run become a plan, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "tests/unit/megatron_compat/plan_request.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat::testing {
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
}

TEST(Plan, NeedsNoFile) {
  PlanRequest request;
  request.model = request.train = "";
  request.options["use_distributed_optimizer"] = "true";
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_THAT(request.lines, IsEmpty());
  EXPECT_EQ(request.degree(YOKE_DP_SHARD), 2);
}

TEST(Plan, TranslatesTheWholeFile) {
  PlanRequest request(
      "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather "
      "--ddp-bucket-size 20000 --recompute-granularity full --recompute-method uniform "
      "--recompute-num-layers 2 --eval-interval 50 --eval-iters 4 --save-interval 10 --seed 7 "
      "--log-interval 5 --distributed-timeout-minutes 2 --profile --profile-step-start 3 "
      "--profile-step-end 5");
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_THAT(request.lines,
              ElementsAre("parallel_backend = \"megatron_compat\"",
                          "megatron_compat.use_distributed_optimizer = true",
                          "megatron_compat.overlap_grad_reduce = true",
                          "megatron_compat.overlap_param_gather = true",
                          "megatron_compat.ddp_bucket_size = 20000",
                          "megatron_compat.recompute_granularity = \"full\"",
                          "megatron_compat.recompute_method = \"uniform\"",
                          "megatron_compat.recompute_num_layers = 2",
                          "megatron_compat.loss = \"mean_of_means\"",
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
                          "train.global_batch = 8",
                          "train.micro_batch = 2",
                          "train.optimizer = \"adamw\"",
                          "train.betas = [0.9, 0.95]",
                          "train.eps = 1e-08",
                          "train.weight_decay = 0.1",
                          "train.decay = \"matrices\"",
                          "train.clip = 1",
                          "precision.param = \"fp32\"",
                          "train.steps = 20",
                          "train.lr = 0.001",
                          "train.warmup = 0",
                          "train.schedule = \"constant\"",
                          "eval.every = 50",
                          "eval.batches = 4",
                          "checkpoint.every = 10",
                          "seed = 7",
                          "metrics.every = 5",
                          "comm.timeout = 120",
                          "profile.steps = [4, 5]"));
}

// ---- The command line by itself ----

struct Case {
  const char* arguments;
  const char* message;  // part of the refusal or note
};

// Expects each command line to be refused with its message.
void expect_refused(std::span<const Case> cases) {
  for (const Case& c : cases) {
    PlanRequest request(c.arguments);
    const auto messages = request.ask();
    EXPECT_THAT(messages, Contains(AllOf(HasSubstr(c.message), Not(HasSubstr("note:")))))
        << c.arguments;
  }
}

TEST(CommandLine, IsRefusedWithTheReason) {
  const Case cases[] = {
      {"--overlap-grad-reduc",
       "Megatron has no such argument; did you mean '--overlap-grad-reduce'?"},
      {"--ddp-bucket-size", "--ddp-bucket-size = on; allowed: one whole number"},
      {"--ddp-bucket-size 1e5", "--ddp-bucket-size = 1e5; allowed: one whole number"},
      {"--ddp-bucket-size 0", "--ddp-bucket-size = 0; allowed: 1 or more"},
      {"--bf16 true", "--bf16 = true; allowed: no value"},
      {"--lr 1 2", "--lr = 1 2; allowed: one number"},
      {"--lr=0.5", "it is given twice with different values"},
      {"--normalization LayerNorm", "it is given twice"},
      {"--num-experts 8", "experts are not supported"},
      {"--fp8-format hybrid", "set precision.product = \"fp8\""},
      {"--fp16", "use --bf16"},
      {"--recompute-modules mlp", "--recompute-modules = mlp; allowed: core_attn"},
      {"--optimizer lion", "--optimizer = lion; allowed: adam,sgd"},
      {"--overlap-param-gather", "it needs --use-distributed-optimizer and --overlap-grad-reduce"},
      {"--num-distributed-optimizer-instances 2", "it needs --use-distributed-optimizer"},
      {"--use-distributed-optimizer --num-distributed-optimizer-instances 3", "allowed: 1, 2"},
      {"--use-distributed-optimizer --num-distributed-optimizer-instances 2 "
       "--ddp-average-in-collective",
       "an average over an instance is not the average over all data ranks"},
      {"--overlap-grad-reduce --ddp-bucket-size 5 --ddp-num-buckets 2",
       "contradicts --ddp-bucket-size"},
      {"--calculate-per-token-loss --ddp-average-in-collective", "gradients are sums"},
      {"--grad-reduce-in-bf16", "it needs --bf16"},
      {"--accumulate-allreduce-grads-in-fp32 --grad-reduce-in-bf16", "it contradicts"},
      {"--recompute-granularity full", "full needs --recompute-method uniform or block"},
      {"--recompute-granularity full --recompute-method block", "it needs --recompute-num-layers"},
      {"--recompute-method block", "it needs --recompute-granularity full"},
      {"--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
       "--recompute-activations",
       "it contradicts --recompute-granularity full"},
      {"--train-samples 160", "it contradicts --train-iters"},
      {"--start-weight-decay 0", "weight decay is constant"},
      {"--kv-channels 16", "--kv-channels = 16; allowed: 8"},
      {"--max-position-embeddings 32", "it is below --seq-length"},
      {"--sequence-parallel", "it needs a --tensor-model-parallel-size above 1"},
      {"--decoupled-lr 1", "all parameters have one learning rate"},
      {"--rampup-batch-size 2 2 100", "the global batch is constant"},
      {"--mock-data", "set data.path"},
      {"--kitchen-recipe-number 1", "quantised layers of NVIDIA's Kitchen are not supported"},
      {"--kitchen-config-file a", "quantised layers of NVIDIA's Kitchen are not supported"},
      {"--logits-load-dir a", "distillation from saved logits is not supported"},
      {"--logits-save-dir a", "logits are not saved"},
      {"--retro-add-retriever", "retrieval is not supported"},
  };
  expect_refused(cases);
}

TEST(CommandLine, NamesAllDefaultsThatAreAnotherModelAtOnce) {
  PlanRequest request;
  request.model = "--num-layers 2 --hidden-size 64 --num-attention-heads 8 --seq-length 64 ";
  EXPECT_THAT(request.ask(),
              Contains(AllOf(HasSubstr("--normalization RMSNorm --swiglu --disable-bias-linear "
                                       "--hidden-dropout 0 --attention-dropout 0 "
                                       "--position-embedding-type rope"),
                             HasSubstr("add these arguments"))));
  PlanRequest old;
  old.model.replace(
      old.model.find("--position-embedding-type rope"), 30, "--use-rotary-position-embeddings");
  EXPECT_THAT(old.ask(), IsEmpty());
}

TEST(CommandLine, IsAcceptedWithANoteWhereAnArgumentHasNoEffect) {
  const Case cases[] = {
      {"--num-workers 8",
       "note: args_file.file:1: --num-workers = 8; no effect: it concerns how samples are loaded"},
      {"--load checkpoints", "--load = checkpoints; set checkpoint.resume"},
      {"--test-data-path a", "--test-data-path = a; a run has one set for evaluation"},
      {"--moe-grouped-gemm", "no effect: its feature is not supported"},
      {"--ddp-num-buckets 2", "without --overlap-grad-reduce there is one bucket"},
      {"--ddp-pad-buckets-for-high-nccl-busbw", "only with --use-distributed-optimizer"},
      {"--recompute-activations", "the scores of attention are never kept"},
      {"--recompute-granularity selective", "the scores of attention are never kept"},
  };
  for (const Case& c : cases) {
    PlanRequest request(c.arguments);
    const auto messages = request.ask();
    ASSERT_EQ(messages.size(), 1u) << c.arguments;
    EXPECT_THAT(messages[0], AllOf(HasSubstr("note: "), HasSubstr(c.message)));
  }
}

TEST(CommandLine, MayGiveAnArgumentTwiceWithTheSameValue) {
  PlanRequest request("--lr 1e-3 --encoder-num-layers 2 --encoder-seq-length 64");
  EXPECT_THAT(request.ask(), IsEmpty());
}

// Before core 0.18, NullTokenizer has an end of a document behind the ids of --vocab-size.
TEST(CommandLine, NeedsThePaddedVocabularyWhereTheReleasesDiffer) {
  const auto vocab = [](const std::string& size, const std::string& more) {
    PlanRequest request("--tokenizer-type " + more);
    request.model.replace(request.model.find("--vocab-size 1024"), 17, "--vocab-size " + size);
    for (const std::string& message : request.ask())
      EXPECT_TRUE(message.starts_with("note: ")) << size << " " << more << ": " << message;
    return request.line("model.vocab");
  };
  EXPECT_EQ(vocab("1023", "NullTokenizer"), "1024");
  EXPECT_EQ(vocab("1024", "GPT2BPETokenizer"), "1024");
  for (const char* more : {"--padded-vocab-size 1024",
                           "--no-pad-vocab-size",
                           "--null-tokenizer-eod-id 7",
                           "--null-tokenizer-pad-id 7"})
    EXPECT_EQ(vocab("1024", concat("NullTokenizer ", more)), "1024");
  const Case cases[] = {{"--tokenizer-type NullTokenizer",
                         "--vocab-size = 1024; allowed: --padded-vocab-size 1152 or 1024 instead"},
                        {"--tokenizer-type NullTokenizer --make-vocab-size-divisible-by 1",
                         "--padded-vocab-size 1025 or 1024 instead"}};
  expect_refused(cases);
}

// ---- The command line and the run ----

TEST(Run, ThatDiffersFromTheFileIsRefusedWithBothValues) {
  struct {
    const char* from;
    const char* to;
    const char* message;
  } const cases[] = {
      {"--num-layers 2", "--num-layers 3", "it means model.layers = 3, but the run has 2"},
      {"--hidden-size 64", "--hidden-size 128", "it means model.dim = 128, but the run has 64"},
      {"--ffn-hidden-size 256 ", "", "it means model.ffn_dim = 128, but the run has 256"},
      {"--num-attention-heads 8",
       "--num-attention-heads 16",
       "model.heads = 16, but the run has 8"},
      {"--group-query-attention ", "", "it means model.kv_heads = 8, but the run has 4"},
      {"--num-query-groups 4", "--num-query-groups 2", "model.kv_heads = 2, but the run has 4"},
      {"--untie-embeddings-and-output-weights ",
       "",
       "it means model.tied = true, but the run has false"},
      {"--vocab-size 1024",
       "--vocab-size 1025",
       "it means model.vocab = 1152, but the run has 1024"},
      {"--seq-length 64", "--seq-length 128", "it means data.seq_len = 128, but the run has 64"},
      {"--global-batch-size 8",
       "--global-batch-size 16",
       "train.global_batch = 16, but the run has 8"},
      {"--global-batch-size 8 ", "", "it means train.global_batch = 4, but the run has 8"},
      {"--adam-beta2 0.95 ",
       "",
       "it means train.betas = [0.9, 0.999], but the run has [0.9, 0.95]"},
      {"--adam-beta2 0.95 ",
       "--adam-beta1 1.5 ",
       "--adam-beta1 = 1.5; allowed: at least 0 and below 1"},
      {"--adam-beta2 0.95 ", "--adam-beta2 1 ", "--adam-beta2 = 1; allowed: at least 0"},
      {"--weight-decay 0.1 ", "", "it means train.weight_decay = 0.01, but the run has 0.1"},
      {"--clip-grad 1 ", "--clip-grad 0.5 ", "it means train.clip = 0.5, but the run has 1"},
      {"--lr 1e-3", "--lr 1e-3 --bf16", "precision.param = \"bf16\", but the run has \"fp32\""},
      {"--lr 1e-3", "--lr 1e-3 --adam-eps 1e-5", "train.eps = 1e-05, but the run has 1e-08"},
      {"--micro-batch-size 2", "--micro-batch-size 3", "it is no multiple of --micro-batch-size 3"},
      {"--micro-batch-size 2", "", "Megatron requires it"},
      {"--micro-batch-size 2", "--micro-batch-size 9223372036854775807", "allowed: 1 to 1000000"},
      {"--lr 1e-3", "", "Megatron requires it"},
  };
  for (const auto& c : cases) {
    PlanRequest request;
    for (std::string* text : {&request.model, &request.train}) {
      if (const size_t at = text->find(c.from); at != std::string::npos)
        text->replace(at, std::string(c.from).size(), c.to);
    }
    EXPECT_THAT(request.ask(), Contains(HasSubstr(c.message))) << c.from << " -> " << c.to;
  }
  PlanRequest all;
  all.dims.decay_matrices = false;
  EXPECT_THAT(all.ask(),
              Contains(HasSubstr("train.decay = \"matrices\", but the run has \"all\"")));
}

TEST(Run, MayBeInFp64OrTied) {
  PlanRequest fp64;
  fp64.plan.plan.param_dtype = YOKE_F64;
  EXPECT_THAT(fp64.ask(), IsEmpty());
  EXPECT_EQ(fp64.plan.plan.reduce_dtype, YOKE_F64);
  PlanRequest tied;
  tied.dims.tied = true;
  tied.model.erase(tied.model.find("--untie-embeddings-and-output-weights"), 38);
  EXPECT_THAT(tied.ask(), IsEmpty());
}

TEST(Run, HasADegreeForEachInstance) {
  PlanRequest request("--use-distributed-optimizer --num-distributed-optimizer-instances 2");
  request.plan.plan.world_size = 4;
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.degree(YOKE_DP_REPLICATE), 2);
  EXPECT_EQ(request.degree(YOKE_DP_SHARD), 2);
  PlanRequest sharded;
  sharded.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(
      sharded.ask(),
      Contains(HasSubstr("dp_shards = 2; allowed: 1; the run has 2 data rank(s), and without")));
}

TEST(Run, AndOptionsOfTheRunFileMayRepeatTheFileButNotChangeIt) {
  PlanRequest same("--overlap-grad-reduce --ddp-bucket-size 100");
  same.options = {{"overlap_grad_reduce", "true"}, {"ddp_bucket_size", "100"}};
  EXPECT_THAT(same.ask(), IsEmpty());
  PlanRequest other("--overlap-grad-reduce --ddp-bucket-size 100");
  other.options = {{"overlap_grad_reduce", "false"}, {"ddp_bucket_size", "200"}};
  EXPECT_THAT(other.ask(),
              ElementsAre(HasSubstr("megatron_compat.overlap_grad_reduce = false; allowed: true"),
                          HasSubstr("megatron_compat.ddp_bucket_size = 200; allowed: 100")));
  PlanRequest loss("--calculate-per-token-loss");
  loss.options["loss"] = "even";
  EXPECT_THAT(loss.ask(), Contains(HasSubstr("megatron_compat.loss = \"even\" is another loss")));
}

TEST(Run, ReducesInBf16IfTheFileDoes) {
  PlanRequest request("--bf16 --grad-reduce-in-bf16");
  request.plan.plan.param_dtype = YOKE_BF16;
  EXPECT_THAT(request.ask(), IsEmpty());
  EXPECT_EQ(request.plan.plan.reduce_dtype, YOKE_BF16);
  EXPECT_EQ(request.line("precision.reduce"), "\"bf16\"");
}

TEST(Run, MayNotReduceInAnotherTypeThanItsOwnOptionsSay) {
  const struct {
    const char* option;
    int32_t param, reduce;
    const char* message;
  } cases[] = {
      {"grad_reduce_in_bf16", YOKE_BF16, YOKE_F32, "the run has precision.reduce = \"fp32\""},
      {"accumulate_allreduce_grads_in_fp32",
       YOKE_BF16,
       YOKE_BF16,
       "the run has precision.reduce = \"bf16\""},
      {"grad_reduce_in_bf16", YOKE_F32, YOKE_F32, "it needs precision.param = \"bf16\""},
      {"grad_reduce_in_bf16", YOKE_BF16, YOKE_BF16, nullptr},
      {"accumulate_allreduce_grads_in_fp32", YOKE_BF16, YOKE_F32, nullptr},
      {"accumulate_allreduce_grads_in_fp32", YOKE_F32, YOKE_F32, nullptr},
  };
  for (const auto& c : cases) {
    PlanRequest request;
    request.model = request.train = "";  // no file
    request.options[c.option] = "true";
    request.plan.plan.param_dtype = c.param;
    request.plan.plan.reduce_dtype = c.reduce;
    if (c.message == nullptr) {
      EXPECT_THAT(request.ask(), IsEmpty()) << c.option;
    } else {
      EXPECT_THAT(request.ask(), ElementsAre(HasSubstr(c.message))) << c.option;
    }
  }
}

TEST(Launcher, DecidesTheDegreesOfATranslation) {
  const auto ask = [](PlanRequest& request, const std::string& launcher) {
    request.train = launcher + " pretrain_gpt.py " + request.train;
    std::swap(request.model, request.train);
    request.ask();
  };
  PlanRequest replicas("--untie-embeddings-and-output-weights");
  ask(replicas, "torchrun --nnodes 2 --nproc_per_node=4");
  EXPECT_EQ(replicas.line("dp_degree"), "8");
  EXPECT_EQ(replicas.line("dp_shards"), "1");
  PlanRequest shards("--use-distributed-optimizer --num-distributed-optimizer-instances 2");
  ask(shards, "torchrun --nproc-per-node 8");
  EXPECT_EQ(shards.line("dp_degree"), "2");
  EXPECT_EQ(shards.line("dp_shards"), "4");
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
