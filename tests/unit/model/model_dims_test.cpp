#include "core/model/model_dims.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/config/families.hpp"
#include "core/model/hf_config.hpp"
#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string refusal(const ModelConfig& config) {
  try {
    model_dims(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "nothing was thrown";
}

// ---- Dimensions from a preset or the run file ----

TEST(ModelDims, OverridesAPreset) {
  ModelConfig config;
  config.preset = "llama3-8b";
  config.layers = 2;
  config.tied = true;
  const ModelDims d = model_dims(config);
  EXPECT_EQ(d.layers, 2);
  EXPECT_EQ(d.dim, 4096);
  EXPECT_EQ(d.rope_theta, 500000);
  EXPECT_TRUE(d.tied);
}

TEST(ModelDims, NamesEveryFault) {
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

// Returns the parameters of a Llama: embedding and head, the matrices and norms of each layer, and
// the last norm.
int64_t params_of(const ModelDims& d) {
  const int64_t layer =
      2 * d.dim * d.q_dim() + 2 * d.dim * d.kv_dim() + 3 * d.dim * d.ffn_dim + 2 * d.dim;
  return 2 * d.vocab * d.dim + d.layers * layer + d.dim;
}

TEST(ModelDims, OfThePresetsAreThoseOfTheGuide) {
  const std::string guide =
      testing::read_file(std::string(std::getenv("YOKE_SOURCE")) + "/docs/models.md");
  ModelConfig config;
  config.preset = "huge";
  std::string names = refusal(config);
  names = names.substr(names.find("allowed: ") + 9);
  int presets = 0;
  for (size_t end; (end = names.find(", ")) != std::string::npos; names.erase(0, end + 2)) {
    config.preset = names.substr(0, end);
    if (config.preset.starts_with("or ")) break;
    const ModelDims d = model_dims(config);
    const std::string row = concat("| `", config.preset, "` | ", d.dim, " | ", d.layers) +
                            concat(" | ", d.heads, " | ", d.kv_heads, " | ", d.ffn_dim) +
                            concat(" | ", d.vocab, " | ") +
                            with_commas(static_cast<double>(params_of(d))) + " |\n";
    EXPECT_THAT(guide, HasSubstr(row));
    EXPECT_FALSE(d.tied);
    ++presets;
  }
  EXPECT_GE(presets, 6);
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

TEST(ModelDims, ComeFromTheFolder) {
  Folder folder;
  folder.config.layers = 3;
  folder.config.tied = false;
  EXPECT_EQ(model_dims(folder.config).ffn_dim, 96);
}

TEST(ModelDims, RefuseWhatContradictsTheFolderNamingBoth) {
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

TEST(ModelDims, RefuseAPresetBesideAFolder) {
  Folder folder;
  folder.config.preset = "tiny";
  EXPECT_THAT(refusal(folder.config), HasSubstr("leave model.preset out"));
}

TEST(ModelDims, ComeFromAConfigWithoutWeights) {
  Folder folder;
  std::swap(folder.config.config, folder.config.from);
  EXPECT_EQ(model_dims(folder.config).ffn_dim, 96);
  folder.config.config += "/config.json";
  EXPECT_EQ(model_dims(folder.config).ffn_dim, 96);
  folder.config.from = folder.temp.path().string();
  EXPECT_THAT(refusal(folder.config), HasSubstr("leave model.config out"));
}

TEST(ModelDims, TakeTheFamilyFromTheFile) {
  Folder folder;
  EXPECT_EQ(model_family(folder.config), "llama");
  Json json = least();
  json["model_type"] = "mistral";
  folder.temp.write("config.json", json.dump());
  EXPECT_EQ(model_family(folder.config), "mistral");
  EXPECT_EQ(model_family({}), "llama");
  folder.config.family = "llama";
  EXPECT_THAT(refusal(folder.config),
              AllOf(HasSubstr("model.family = llama, but "), HasSubstr("model_type = mistral")));
}

// core/config must know the names, because the keys of [model] belong to the family.
TEST(ModelDims, KnowTheFamiliesThatCoreConfigKnows) {
  std::vector<std::string> names = hf_families();
  names.emplace_back("auto");
  EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(kBuiltinFamilies));
}

TEST(ModelDims, NeedAFileForFamiliesWithoutPresets) {
  ModelConfig config;
  config.family = "gpt2";
  config.preset = "tiny";
  EXPECT_THAT(refusal(config),
              AllOf(HasSubstr("model.family = \"gpt2\""), HasSubstr("model.config")));
}

TEST(ModelDims, AllowAnyEvenHeadDim) {
  Folder folder;
  Json json = least();
  json.update({{"num_attention_heads", 6}, {"head_dim", 10}});
  folder.temp.write("config.json", json.dump());
  EXPECT_EQ(model_dims(folder.config).q_dim(), 60);
  json["head_dim"] = 9;
  folder.temp.write("config.json", json.dump());
  EXPECT_THAT(refusal(folder.config), HasSubstr("head_dim = 9; allowed: an even number"));
}

TEST(ModelDims, NameTheFileOfDimensionsThatDoNotGoTogether) {
  Folder folder;
  Json json = least();
  json["num_key_value_heads"] = 3;
  folder.temp.write("config.json", json.dump());
  EXPECT_THAT(refusal(folder.config),
              AllOf(HasSubstr("config.json"), HasSubstr("model.kv_heads = 3")));
}

}  // namespace
}  // namespace yoke
