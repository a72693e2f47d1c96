#include "core/model/llama_dims.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string refusal(const ModelConfig& config) {
  try {
    llama_dims(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

// ---- Dimensions from a preset or the run file ----

TEST(LlamaDims, OverridesAPreset) {
  ModelConfig config;
  config.preset = "llama3-8b";
  config.layers = 2;
  config.tied = true;
  const LlamaDims d = llama_dims(config);
  EXPECT_EQ(d.layers, 2);
  EXPECT_EQ(d.dim, 4096);
  EXPECT_EQ(d.rope_theta, 500000);
  EXPECT_TRUE(d.tied);
}

TEST(LlamaDims, NamesEveryFault) {
  ModelConfig config;
  config.preset = "huge";
  EXPECT_THAT(
      refusal(config),
      AllOf(HasSubstr("model.preset = \"huge\""), HasSubstr("llama-14m"), HasSubstr("tiny")));
  config = {};
  config.layers = -2;
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("model.dim is not given"),
                    HasSubstr("model.layers = -2"),
                    HasSubstr("model.vocab")));
  config = {};
  config.dim = 24;
  config.layers = 2;
  config.heads = 5;
  config.kv_heads = 2;
  config.ffn_dim = 40;
  config.vocab = 50;
  config.rope_theta = 0;
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("model.dim = 24 with model.heads = 5"),
                    HasSubstr("a divisor of model.heads = 5"),
                    HasSubstr("rope_theta")));
}

// ---- Dimensions from a folder (model.from) ----

// Returns the keys that a config.json must have.
Json least() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 8},
          {"intermediate_size", 96},
          {"vocab_size", 320}};
}

struct Folder {
  testing::TempFolder temp;
  ModelConfig config;
  Folder() {
    temp.write("config.json", least().dump());
    config.from = temp.path().string();
  }
};

TEST(LlamaDims, ComeFromTheFolder) {
  Folder folder;
  folder.config.layers = 3;
  folder.config.tied = false;
  EXPECT_EQ(llama_dims(folder.config).ffn_dim, 96);
}

TEST(LlamaDims, RefuseWhatContradictsTheFolderNamingBoth) {
  Folder folder;
  folder.config.layers = 4;
  folder.config.tied = true;
  folder.config.norm_eps = 1e-5;
  EXPECT_THAT(refusal(folder.config),
              AllOf(HasSubstr("model.layers = 4, but " + folder.config.from +
                              "/config.json has num_hidden_layers = 3"),
                    HasSubstr("model.tied = true, but "),
                    HasSubstr("tie_word_embeddings = false"),
                    HasSubstr("model.norm_eps = 1e-05, but ")));
}

TEST(LlamaDims, RefuseAPresetBesideAFolder) {
  Folder folder;
  folder.config.preset = "tiny";
  EXPECT_THAT(refusal(folder.config), HasSubstr("leave model.preset out"));
}

TEST(LlamaDims, NameTheFileOfDimensionsThatDoNotGoTogether) {
  Folder folder;
  Json json = least();
  json["num_key_value_heads"] = 3;
  folder.temp.write("config.json", json.dump());
  EXPECT_THAT(refusal(folder.config),
              AllOf(HasSubstr("config.json"), HasSubstr("model.kv_heads = 3")));
}

}  // namespace
}  // namespace yoke
