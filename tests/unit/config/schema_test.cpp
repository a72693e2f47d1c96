#include "core/config/schema.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/config/config.hpp"

namespace yoke {
namespace {

TEST(Schema, NoTwoKeysShareANameOrAVariable) {
  std::set<std::string> names, variables;
  for (const Key& key : schema()) {
    const std::string name(key.name);
    EXPECT_TRUE(names.insert(name).second) << name;
    const std::string variable = variable_name(name);
    EXPECT_TRUE(variable.empty() || variables.insert(variable).second) << variable;
  }
}

TEST(Schema, NoKeyTakesAVariableThatMeansSomethingElse) {
  for (const Key& key : schema()) {
    const std::string variable = variable_name(std::string(key.name));
    for (const char* other : {"YOKE_BACKEND_PATH",
                              "YOKE_BIN",
                              "YOKE_DEPS",
                              "YOKE_SOURCE",
                              "YOKE_TORCH_DIR",
                              "YOKE_TORCH_LIB"}) {
      EXPECT_NE(variable, other);
    }
  }
}

TEST(Schema, EveryDefaultIsAllowed) {
  for (const Key& key : schema()) {
    const std::optional<Value> value = read_key(key, RunConfig{});
    if (!value || key.is(kRequired)) continue;
    EXPECT_EQ(check_key(key, *value), "") << key.name;
  }
}

TEST(Schema, EveryKeyHasAPlaceOfItsOwn) {
  RunConfig config;
  std::set<const void*> places;
  for (const Key& key : schema()) {
    const void* place = std::visit([](auto* p) -> const void* { return p; }, key.field(config));
    EXPECT_TRUE(places.insert(place).second) << key.name;
  }
}

TEST(Schema, EveryKeySaysWhatItIsInOneLine) {
  for (const Key& key : schema()) {
    EXPECT_FALSE(key.doc.empty()) << key.name;
    EXPECT_EQ(key.doc.find('\n'), std::string_view::npos) << key.name;
    EXPECT_FALSE(allowed(key).empty()) << key.name;
  }
}

// The keys of run files, in the order of the schema. Users have run files with these names, so none
// may change.
constexpr const char* kFrozenKeys[] = {"parallel_backend",
                                       "backend_path",
                                       "pp_degree",
                                       "dp_degree",
                                       "dp_shards",
                                       "cp_degree",
                                       "tp_degree",
                                       "device",
                                       "seed",
                                       "worker",
                                       "other_config",
                                       "run.dir",
                                       "model.family",
                                       "model.preset",
                                       "model.from",
                                       "model.config",
                                       "model.dim",
                                       "model.layers",
                                       "model.heads",
                                       "model.kv_heads",
                                       "model.ffn_dim",
                                       "model.vocab",
                                       "model.tied",
                                       "model.rope_theta",
                                       "model.norm_eps",
                                       "model.blocks",
                                       "model.freeze",
                                       "lora.rank",
                                       "lora.alpha",
                                       "lora.targets",
                                       "lora.from",
                                       "data.path",
                                       "data.weights",
                                       "data.format",
                                       "data.seq_len",
                                       "data.order",
                                       "data.pad_token",
                                       "data.mask",
                                       "data.documents",
                                       "data.document_end",
                                       "data.holdout",
                                       "data.split",
                                       "train.steps",
                                       "train.global_batch",
                                       "train.micro_batch",
                                       "train.max_micro_batch",
                                       "train.optimizer",
                                       "train.bias_correction",
                                       "train.lr",
                                       "train.warmup",
                                       "train.schedule",
                                       "train.min_lr_factor",
                                       "train.betas",
                                       "train.eps",
                                       "train.momentum",
                                       "train.weight_decay",
                                       "train.decay",
                                       "train.clip",
                                       "train.deterministic",
                                       "train.tune_products",
                                       "train.max_skipped",
                                       "eval.every",
                                       "eval.batches",
                                       "eval.path",
                                       "precision.param",
                                       "precision.reduce",
                                       "precision.product",
                                       "precision.fp8_recipe",
                                       "precision.fp8_skip",
                                       "loss_scale.static",
                                       "loss_scale.rule",
                                       "loss_scale.initial_power",
                                       "loss_scale.window",
                                       "loss_scale.hysteresis",
                                       "loss_scale.consecutive_hysteresis",
                                       "loss_scale.min",
                                       "checkpoint.every",
                                       "checkpoint.keep",
                                       "checkpoint.best",
                                       "checkpoint.resume",
                                       "metrics.every",
                                       "metrics.line",
                                       "metrics.tensorboard",
                                       "profile.steps",
                                       "verify.every",
                                       "record.facts",
                                       "record.states",
                                       "comm.check",
                                       "comm.timeout",
                                       "comm.transport",
                                       "comm.nccl_cta_policy",
                                       "comm.nccl_nvls_ctas",
                                       "comm.nccl_register",
                                       "comm.nccl_split",
                                       "launch.join_timeout",
                                       "launch.elastic_wait",
                                       "launch.lost_after",
                                       "launch.end_with_parent",
                                       "lr_schedule.first_step",
                                       "lr_schedule.start_factor",
                                       "lr_schedule.warmup_shape",
                                       "lr_schedule.total_steps",
                                       "lr_schedule.cycles",
                                       "lr_schedule.power",
                                       "lr_schedule.timescale",
                                       "lr_schedule.decay_steps",
                                       "lr_schedule.decay_shape",
                                       "lr_schedule.rise_steps",
                                       "lr_schedule.fall_steps",
                                       "lr_schedule.rise_stairs",
                                       "lr_schedule.fall_stairs",
                                       "lr_schedule.tail_steps",
                                       "lr_schedule.tail_rate",
                                       "lr_schedule.range_steps",
                                       "lr_schedule.range_rate",
                                       "lr_schedule.staircase"};

TEST(Schema, TheKeysThatUsersRelyOnAreThere) {
  const std::vector<std::string> expected(std::begin(kFrozenKeys), std::end(kFrozenKeys));
  EXPECT_EQ(key_names(), expected);
}

TEST(Schema, NamesRangesInWords) {
  EXPECT_EQ(allowed(*find_key("train.global_batch")), "1 or more");
  EXPECT_EQ(allowed(*find_key("train.lr")), "above 0");
  EXPECT_EQ(allowed(*find_key("data.holdout")), "at least 0 and below 1");
  EXPECT_EQ(allowed(*find_key("train.optimizer")), "adamw, adam, lion, muon, sgd");
  EXPECT_EQ(allowed(*find_key("model.tied")), "true, false");
  EXPECT_EQ(allowed(*find_key("pp_degree")), "1 or more");
  EXPECT_EQ(allowed(*find_key("dp_degree")), "1 or more");
  EXPECT_EQ(allowed(*find_key("data.path")), "any");
}

TEST(Schema, TurnsNamesIntoVariables) {
  EXPECT_EQ(variable_name("train.max_micro_batch"), "YOKE_TRAIN_MAX_MICRO_BATCH");
  EXPECT_EQ(variable_name("seed"), "YOKE_SEED");
  EXPECT_EQ(variable_name("backend_path"), "");
}

TEST(Schema, ListsItselfAsJson) {
  const auto rows = nlohmann::json::parse(schema_json());
  ASSERT_EQ(rows.size(), schema().size());
  for (const auto& row : rows) {
    if (row["key"] == "parallel_backend") {
      EXPECT_EQ(row["default"], "ptd");
      EXPECT_EQ(row["required"], false);
    }
    if (row["key"] == "data.path") {
      EXPECT_EQ(row["default"], nullptr);
      EXPECT_EQ(row["required"], true);
    }
    if (row["key"] != "train.lr") continue;
    EXPECT_EQ(row["type"], "float");
    EXPECT_EQ(row["default"], 3e-4);
    EXPECT_EQ(row["variable"], "YOKE_TRAIN_LR");
    EXPECT_EQ(row["required"], false);
  }
}

TEST(Degrees, CanBeReadByAxis) {
  Degrees degrees;
  for (size_t axis = 0; axis < Degrees::kAxes.size(); ++axis) {
    EXPECT_FALSE(degrees[axis].has_value());
    degrees[axis] = static_cast<int>(axis) + 1;
  }
  EXPECT_EQ(degrees.pp, 1);
  EXPECT_EQ(degrees.dp_replicate, 2);
  EXPECT_EQ(degrees.dp_shard, 3);
  EXPECT_EQ(degrees.cp, 4);
  EXPECT_EQ(degrees.tp, 5);
  for (const std::string_view key : Degrees::kKeys) EXPECT_NE(find_key(key), nullptr) << key;
}

}  // namespace
}  // namespace yoke
