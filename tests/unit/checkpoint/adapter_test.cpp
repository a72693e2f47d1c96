#include "core/checkpoint/adapter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Reads the smallest config with the given keys in addition. Returns the message of the error, or
// "" if there is none.
std::string message(const nlohmann::json& keys) {
  nlohmann::json json = {
      {"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
  json.update(keys);
  try {
    parse_adapter_config(json.dump(), "here");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

// These do not change the weights of the model, or were converted by PEFT, which keeps the settings
// of the first initial values.
TEST(AdapterConfig, MayHaveInitialValuesThatKeepTheWeights) {
  for (const nlohmann::json& init :
       {nlohmann::json(true), nlohmann::json(false), nlohmann::json("gaussian"), nlohmann::json()})
    EXPECT_EQ(message({{"init_lora_weights", init}}), "");
  EXPECT_EQ(message({{"init_lora_weights", "eva"}, {"eva_config", {{"rho", 1.0}}}}), "");
  EXPECT_EQ(message({{"init_lora_weights", true}, {"corda_config", {{"corda_method", "kpm"}}}}),
            "");
}

// The adapter belongs to weights that are in none of the files.
TEST(AdapterConfig, MayNotHaveInitialValuesThatChangeTheWeights) {
  for (const char* init :
       {"pissa", "pissa_niter_16", "olora", "corda", "lora_ga", "loftq", "of a later version"})
    EXPECT_THAT(message({{"init_lora_weights", init}}),
                AllOf(HasSubstr(std::string("here: init_lora_weights = \"") + init + "\""),
                      HasSubstr("allowed: true, false, \"gaussian\""),
                      HasSubstr("path_initial_model_for_weight_conversion")));
}

TEST(AdapterConfig, MayNotComputeAnythingElse) {
  const std::pair<const char*, nlohmann::json> keys[] = {{"use_dora", true},
                                                         {"use_rslora", true},
                                                         {"bias", "lora_only"},
                                                         {"lora_bias", true},
                                                         {"rank_pattern", {{"q_proj", 8}}},
                                                         {"alpha_pattern", {{"q_proj", 8}}},
                                                         {"layers_to_transform", {0, 1}},
                                                         {"layers_to_transform", 1},
                                                         {"modules_to_save", {"lm_head"}},
                                                         {"exclude_modules", {"lm_head"}},
                                                         {"fan_in_fan_out", "yes"}};
  for (const auto& [key, value] : keys)
    EXPECT_THAT(message({{key, value}}),
                AllOf(HasSubstr(std::string("here: ") + key + " = " + value.dump()),
                      Not(HasSubstr("does not know")),
                      Not(HasSubstr("conversion"))));
}

// An empty value of a key that Yoke does not know means that it is not used.
TEST(AdapterConfig, MayHaveKeysOfALaterVersionThatAreNotUsed) {
  for (const nlohmann::json& value : {nlohmann::json(),
                                      nlohmann::json(false),
                                      nlohmann::json(""),
                                      nlohmann::json::array(),
                                      nlohmann::json::object()})
    EXPECT_EQ(message({{"kasa_config", value}}), "");
  EXPECT_THAT(message({{"kasa_config", {{"beta", 1e-4}}}}),
              AllOf(HasSubstr("kasa_config = {\"beta\":0.0001}; Yoke does not know this key"),
                    HasSubstr("allowed: null, false, \"\", [], {}, or no such key")));
  EXPECT_THAT(message({{"alora_invocation_tokens", {1, 2}}}), HasSubstr("does not know this key"));
}

// What `yoke checkpoint export --adapter` writes can be read again.
TEST(AdapterConfig, ReadsItsOwnText) {
  const AdapterConfig config{.rank = 4, .alpha = 8, .targets = {"c_attn"}, .fan_in_fan_out = true};
  const AdapterConfig read = parse_adapter_config(adapter_config_text(config, "base"), "here");
  EXPECT_EQ(read.rank, 4);
  EXPECT_EQ(read.alpha, 8);
  EXPECT_EQ(read.targets, config.targets);
  EXPECT_TRUE(read.fan_in_fan_out);
}

}  // namespace
}  // namespace yoke
