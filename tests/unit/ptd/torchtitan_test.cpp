// How a job file of torchtitan and a run become a plan, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plugins/ptd/plan.hpp"
#include "plugins/ptd/torchtitan/run_lines.hpp"
#include "sdk/compat/toml.hpp"
#include "tests/support/plan_request.hpp"
#include "tests/support/setting_table.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

// A file that agrees with the run of PlanOfLlama.
const std::string kFile = R"([training]
local_batch_size = 4
mixed_precision_param = "float32"
[activation_checkpoint]
mode = "none"
)";
const std::string kFp8 = "[model]\nconverters = [\"float8\"]\n";

struct PlanRequest
    : yoke::testing::PlanOfLlama<yoke::testing::PlanOnly<option_infos, complete_plan>> {
  // Returns the refusals and notes; see PlanOfLlama::ask().
  std::vector<std::string> ask(const std::string& file) {
    dims.seq_len = 2048;
    return PlanOfLlama::ask(torchtitan::kOption, file);
  }
  // Returns the refusals alone.
  std::vector<std::string> refusals(const std::string& file) {
    std::vector<std::string> texts = ask(file);
    std::erase_if(texts, [](const std::string& text) { return text.starts_with("note: "); });
    return texts;
  }
};

TEST(Toml, ListsItsKeysByLine) {
  const auto keys = compat::parse_toml("a = 1\n[b.c]\nd = [\"x\", 2]\ne = 3e-4\nf = true\n[g]\n");
  ASSERT_EQ(keys.size(), 4u);
  EXPECT_EQ(keys[0].path, "a");
  EXPECT_EQ(keys[1].path, "b.c.d");
  EXPECT_EQ(keys[1].line, 3);
  EXPECT_TRUE(keys[1].is_list);
  EXPECT_THAT(keys[1].values, ElementsAre("x", "2"));
  EXPECT_THAT(keys[2].values, ElementsAre("3e-04"));
  EXPECT_THAT(keys[3].values, ElementsAre("true"));
}

TEST(Torchtitan, KeysAreAllInTheDocument) {
  const std::string document = yoke::testing::read_source("plugins/ptd/TORCHTITAN.md");
  const std::string rows = yoke::testing::setting_rows("key", torchtitan::keys());
  EXPECT_NE(document.find(rows), std::string::npos) << "the document must contain:\n" << rows;
  std::set<std::string_view> names;
  for (const torchtitan::Key& key : torchtitan::keys())
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
}

TEST(Torchtitan, SilenceMeansItsDefaults) {
  PlanRequest request;
  EXPECT_THAT(request.refusals(kFile), ::testing::IsEmpty());
  EXPECT_THAT(request.lines,
              ElementsAre("data.seq_len = 2048",
                          "dp_shards = 2",
                          "train.micro_batch = 4",
                          "train.global_batch = 8",
                          "train.optimizer = \"adamw\"",
                          "train.lr = 8e-04",
                          "train.betas = [0.9, 0.95]",
                          "train.eps = 1e-08",
                          "train.weight_decay = 0.1",
                          "train.decay = \"all\"",
                          "train.clip = 1",
                          "train.steps = 10000",
                          "train.warmup = 200",
                          "train.min_lr_factor = 0",
                          "train.schedule = \"linear\"",
                          "precision.param = \"fp32\"",
                          "precision.reduce = \"fp32\"",
                          "metrics.every = 10",
                          "metrics.tensorboard = false",
                          "checkpoint.every = 0",
                          // A key of the file that needs no line is explained.
                          "# becomes ptd.activation_checkpoint; selective becomes full, which "
                          "needs less memory and more time"));
}

TEST(Torchtitan, WithoutAFileSaysNothing) {
  PlanRequest request;
  EXPECT_THAT(request.refusals(""), ::testing::IsEmpty());
  EXPECT_THAT(request.lines, ::testing::IsEmpty());
}

TEST(Torchtitan, Float8BecomesProductsInFp8) {
  PlanRequest request;
  EXPECT_THAT(request.ask(kFile + kFp8 +
                          "[float8]\nrecipe_name = \"rowwise_with_gw_hp\"\n"
                          "filter_fqns = [\"output\", \"layers.0.attention.wq\", "
                          "\"feed_forward.w2\"]\n"),
              Not(Contains(HasSubstr("no effect"))));
  EXPECT_THAT(request.lines,
              IsSupersetOf({"precision.product = \"fp8\"",
                            "precision.fp8_recipe = \"rowwise_gw_hp\"",
                            "precision.fp8_skip = [\"lm_head\", \"layers.0.self_attn.q_proj\", "
                            "\"mlp.down_proj\"]"}));
  // torchtitan converts the head, too, and older files have one text with commas.
  request.ask(kFile + kFp8);
  EXPECT_THAT(request.lines,
              IsSupersetOf({"precision.fp8_recipe = \"tensorwise\"", "precision.fp8_skip = []"}));
  request.ask(kFile + "[float8]\nenable_float8_linear = true\nfilter_fqns = \"output,wk\"\n");
  EXPECT_THAT(request.lines,
              IsSupersetOf({"precision.product = \"fp8\"",
                            "precision.fp8_skip = [\"lm_head\", \"k_proj\"]"}));
}

// torchtitan skips every matrix whose name contains the text.
TEST(Torchtitan, NamesThatOtherMatricesContainAreRefused) {
  PlanRequest request;
  const auto filter = [&](const std::string& fqn) {
    return request.refusals(kFile + kFp8 + "[float8]\nfilter_fqns = [\"" + fqn + "\"]\n");
  };
  for (const char* bad : {"layers.1", "layers.12", "w", "auto_filter_small_kn", "layers.x"}) {
    EXPECT_THAT(filter(bad), Contains(HasSubstr("is not the name of a matrix"))) << bad;
  }
  for (const char* good : {"layers.1.", "layers.0", "layers.13"}) {
    EXPECT_THAT(filter(good), Not(Contains(HasSubstr("is not the name of a matrix")))) << good;
  }
  EXPECT_THAT(request.lines, Contains("precision.fp8_skip = [\"layers.13\"]"));
}

TEST(Torchtitan, MixedPrecisionNeedsShardsBesideOtherParallelism) {
  const auto dtype = [](const std::string& degrees) {
    PlanRequest request;
    request.plan.plan.world_size = 8;
    request.ask("[parallelism]\n" + degrees);
    return request.lines;
  };
  const std::string unsharded =
      "data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 1\n";
  EXPECT_THAT(dtype(unsharded + "tensor_parallel_degree = 2\n"),
              Contains("precision.param = \"fp32\""));
  EXPECT_THAT(dtype("tensor_parallel_degree = 2\n"), Contains("precision.param = \"bf16\""));
  EXPECT_THAT(dtype("data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1\n"),
              Contains("precision.param = \"bf16\""));
}

TEST(Torchtitan, BothNamesOfTheTableMeanTheSame) {
  PlanRequest request;
  for (const char* table : {"float8", "quantize.linear.float8"}) {
    request.ask(kFile + "[model]\nconverters = [\"" + table + "\"]\n[" + table +
                "]\nrecipe_name = \"rowwise\"\n");
    EXPECT_THAT(request.lines, Contains("precision.fp8_recipe = \"rowwise\"")) << table;
  }
}

TEST(Torchtitan, GathersInFp8AreThoseOfPtd) {
  const std::string gather = "[float8]\nenable_fsdp_float8_all_gather = true\n";
  PlanRequest request;
  // The model of the test has no products in fp8, so ptd refuses what the file turns on.
  EXPECT_THAT(request.refusals(kFile + kFp8 + gather),
              ElementsAre(StartsWith("ptd.fp8_gather = true; allowed: false; no parameter")));
  EXPECT_THAT(request.lines, Contains("ptd.fp8_gather = true"));
  EXPECT_THAT(request.refusals(kFile + kFp8 + gather + "recipe_name = \"rowwise\"\n"),
              Contains(HasSubstr("rows have scales of their own; use tensorwise")));
  EXPECT_THAT(request.ask(kFile + gather),
              Contains(HasSubstr("no effect: model.converters has no float8")));
  PlanRequest replicas;
  replicas.plan.plan.degree[YOKE_DP_REPLICATE] = 2;
  EXPECT_THAT(replicas.ask(kFile + kFp8 + gather), Contains(HasSubstr("nothing is sharded")));
}

TEST(Torchtitan, OptionsOfTheRunFileComeFirst) {
  const std::string full =
      "[training]\nlocal_batch_size = 4\nmixed_precision_param = \"float32\"\n";
  PlanRequest request;
  request.ask(full);
  EXPECT_THAT(request.lines, Contains("ptd.activation_checkpoint = \"full\""));
  const yoke::testing::TempFolder folder;
  folder.write("job.toml", "[parallelism]\nfsdp_reshard_after_forward = \"never\"\n");
  const auto options = [&](std::map<std::string, std::string> values) {
    values[torchtitan::kOption] = (folder.path() / "job.toml").string();
    YokePlan plan{};
    for (int32_t& degree : plan.degree) degree = 1;
    plan.degree[YOKE_DP_SHARD] = 2;
    std::vector<std::string> given;
    for (const auto& [key, value] : values) given.push_back(key);
    const testing::OptionValues filled(values, given);
    return torchtitan::options_of(Options(filled.values.data(), filled.values.size()), plan);
  };
  EXPECT_EQ(options({}).recompute, Recompute::kBlocks);
  EXPECT_FALSE(options({}).reshard_after_forward);
  EXPECT_EQ(options({{"activation_checkpoint", "none"}}).recompute, Recompute::kNone);
}

TEST(Torchtitan, AsyncTensorParallelismCutsExchangesIntoPieces) {
  const std::string async = "enable_async_tensor_parallel = true\n";
  const std::string tp = kFile + "[parallelism]\ntensor_parallel_degree = 2\n";
  PlanRequest request;
  request.plan.plan.global_batch = 4;
  EXPECT_THAT(request.refusals(tp + async), ::testing::IsEmpty());
  EXPECT_THAT(request.lines, Contains("ptd.tp_pieces = 2"));
  PlanRequest unset;
  unset.refusals(tp);
  EXPECT_THAT(unset.lines, Not(Contains(StartsWith("ptd.tp_pieces"))));
  PlanRequest sharded;
  sharded.refusals(kFile + "[parallelism]\n" + async);
  EXPECT_THAT(sharded.lines, Not(Contains(StartsWith("ptd.tp_pieces"))));

  const yoke::testing::TempFolder folder;
  const testing::OptionValues options(
      {{torchtitan::kOption, folder.write("job.toml", "[parallelism]\n" + async)}});
  EXPECT_EQ(torchtitan::options_of(Options(options.values.data(), options.values.size()),
                                   request.plan.plan)
                .mesh.tp_pieces,
            2);
}

TEST(Torchtitan, DegreesAreThoseOfTheFile) {
  PlanRequest request;
  request.plan.plan.world_size = 8;
  request.plan.plan.global_batch = 16;
  request.refusals(kFile +
                   "[parallelism]\ndata_parallel_replicate_degree = 2\n"
                   "tensor_parallel_degree = 2\n");
  EXPECT_EQ(request.plan.plan.degree[YOKE_DP_REPLICATE], 2);
  EXPECT_EQ(request.plan.plan.degree[YOKE_TP], 2);
  EXPECT_EQ(request.plan.plan.degree[YOKE_DP_SHARD], 2);
  PlanRequest other;
  other.plan.plan.degree[YOKE_DP_SHARD] = 2;
  EXPECT_THAT(other.refusals(kFile + "[parallelism]\ndata_parallel_shard_degree = 4\n"),
              ElementsAre(HasSubstr("the run has dp_shards = 2; change one of them")));
}

TEST(Torchtitan, SchedulesBecomeThoseOfTheHost) {
  const auto lines = [](const std::string& more) {
    PlanRequest request;
    request.ask(kFile + more);
    return request.lines;
  };
  const std::string file = "[lr_scheduler]\nwarmup_steps = 100\n";
  EXPECT_THAT(lines(file + "decay_ratio = 0.25\ndecay_type = \"cosine\"\nlr_min = 0.1\n"),
              IsSupersetOf({"train.warmup = 100",
                            "train.min_lr_factor = 0.1",
                            "train.schedule = \"wsd\"",
                            "lr_schedule.decay_steps = 2500",
                            "lr_schedule.decay_shape = \"cosine\""}));
  EXPECT_THAT(lines(file + "decay_type = \"sqrt\"\n"),
              IsSupersetOf({"train.schedule = \"wsd\"", "lr_schedule.decay_steps = 9900"}));
}

TEST(Torchtitan, EveryRefusalIsReportedAtOnce) {
  PlanRequest request;
  EXPECT_THAT(
      request.refusals(
          "[training]\nenable_cpu_offload = true\n[model]\nconverters = [\"mx\"]\n[training2]\nx = "
          "1\n"
          "[optimizer]\nlr = \"high\"\nbeta3 = 1\n[float8]\nfilter_fqns = [\"moe\"]\n"),
      AllOf(Contains(HasSubstr("enable_cpu_offload = true; allowed: false; offload is not built")),
            Contains(HasSubstr("converters = mx; allowed: float8")),
            Contains(HasSubstr("training2.x = 1; allowed: a key of torchtitan's job files")),
            Contains(HasSubstr("optimizer.lr = high; allowed: one number")),
            Contains(HasSubstr("did you mean"))));
  const std::pair<const char*, const char*> unknown[] = {
      {"[training]\nlr = 1\n", "training.lr = 1; allowed: a key of torchtitan's job files; "},
      {"[training]\nlr = 1\n", "; did you mean 'optimizer.lr'?"},
      {"[training]\nseq_length = 1\n", "; did you mean 'seq_len'?"},
      {"[training]\nsteps = 1\n[paralelism]\ntensor_parallel_degre = 1\n",
       "; did you mean 'parallelism.tensor_parallel_degree'?"}};
  for (const auto& [file, message] : unknown)
    EXPECT_THAT(request.refusals(file), Contains(HasSubstr(message))) << file;
  for (const char* bad : {"x = ", "[metrics]\nevery = 1\n"}) {
    EXPECT_THAT(request.refusals(bad), Contains(StartsWith("ptd.torchtitan_config = "))) << bad;
  }
}

TEST(Torchtitan, ARunWithOtherValuesIsRefused) {
  PlanRequest request;
  request.plan.optimizer.clip = 0.5;
  EXPECT_THAT(request.refusals(kFile),
              ElementsAre(HasSubstr("it means train.clip = 1, but the run has 0.5")));
}

}  // namespace
}  // namespace yoke::ptd
