#include "core/model/hf_config.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Returns the keys that a config.json must have.
Json least() {
  return {{"model_type", "llama"},
          {"hidden_size", 64},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 8},
          {"intermediate_size", 96},
          {"vocab_size", 320}};
}

LlamaDims dims(const Json& json) {
  return parse_hf_config(json.dump(), "d/config.json").dims;
}

TEST(HfConfig, HasTheDefaultsOfTransformers) {
  const LlamaDims d = dims(least());
  EXPECT_EQ(d.dim, 64);
  EXPECT_EQ(d.layers, 3);
  EXPECT_EQ(d.heads, 8);
  EXPECT_EQ(d.kv_heads, 8);
  EXPECT_EQ(d.ffn_dim, 96);
  EXPECT_EQ(d.vocab, 320);
  EXPECT_FALSE(d.tied);
  EXPECT_EQ(d.rope_theta, 10000);
  EXPECT_EQ(d.norm_eps, 1e-6);
}

TEST(HfConfig, ReadsWhatIsGiven) {
  Json json = least();
  json.update({{"architectures", {"LlamaForCausalLM"}},
               {"num_key_value_heads", 2},
               {"head_dim", 8},
               {"tie_word_embeddings", true},
               {"rms_norm_eps", 1e-3},
               {"rope_theta", 500000},
               {"rope_scaling", nullptr},
               {"max_position_embeddings", 4096},
               {"hidden_act", "silu"},
               {"attention_dropout", 0},
               {"attention_bias", false},
               {"torch_dtype", "bfloat16"},
               {"a_key_of_the_future", {{"x", 1}}}});
  const HfConfig config = parse_hf_config(json.dump(), "d");
  EXPECT_EQ(config.dims.kv_heads, 2);
  EXPECT_TRUE(config.dims.tied);
  EXPECT_EQ(config.dims.norm_eps, 1e-3);
  EXPECT_EQ(config.dims.rope_theta, 500000);
  EXPECT_EQ(config.max_positions, 4096);
}

TEST(HfConfig, ReadsTheRotaryBaseOfBothGenerations) {
  for (const Json& rope :
       {Json{{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}}},
        Json{{"rope_theta", 7e5}, {"rope_scaling", {{"type", "default"}}}},
        Json{{"rope_theta", 7e5}, {"rope_parameters", {{"rope_theta", 7e5}}}}}) {
    Json json = least();
    json.update(rope);
    EXPECT_EQ(dims(json).rope_theta, 7e5) << rope;
  }
}

TEST(HfConfig, RefusesEveryUnsupportedModelAndNamesTheKey) {
  const std::pair<Json, const char*> rows[] = {
      {{{"model_type", "mistral"}}, "model_type = \"mistral\"; allowed: \"llama\""},
      {{{"model_type", nullptr}}, "model_type = null"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "architectures = [\"LlamaForSeq"},
      {{{"hidden_act", "gelu"}}, "hidden_act = \"gelu\""},
      {{{"attention_bias", true}}, "attention_bias = true: biases"},
      {{{"mlp_bias", true}}, "mlp_bias = true: biases"},
      {{{"attention_dropout", 0.1}}, "attention_dropout = 0.1"},
      {{{"head_dim", 16}}, "head_dim = 16; allowed: hidden_size / num_attention_heads = 8"},
      {{{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}, "rope_scaling = {"},
      {{{"rope_scaling", {{"type", "linear"}}}}, "scaled rotary positions"},
      {{{"rope_parameters", {{"rope_type", "yarn"}}}}, "rope_parameters = {"},
      {{{"rope_parameters", {{"rope_theta", 5.0}}}, {"rope_theta", 6.0}}, "contradicts rope_theta"},
      {{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "partial_rotary_factor"},
      {{{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
      {{{"hidden_size", 0}}, "hidden_size = 0"},
      {{{"hidden_size", "64"}}, "hidden_size = \"64\""},
      {{{"hidden_size", nullptr}}, "hidden_size is missing"},
      {{{"vocab_size", 1e30}}, "vocab_size = 1e+30"},
      {{{"num_hidden_layers", 18446744073709551615ull}}, "num_hidden_layers = 1844"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings = 1"},
      {{{"rms_norm_eps", "small"}}, "rms_norm_eps"},
  };
  for (const auto& [change, fragment] : rows) {
    Json json = least();
    json.update(change);
    try {
      dims(json);
      ADD_FAILURE() << change << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT) << change;
      EXPECT_THAT(e.what(), AllOf(HasSubstr("d/config.json: "), HasSubstr(fragment)));
    }
  }
}

TEST(HfConfig, NamesEveryFaultAtOnce) {
  Json json = least();
  json.update({{"mlp_bias", true}, {"hidden_act", "relu"}, {"vocab_size", -1}});
  try {
    dims(json);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                AllOf(HasSubstr("mlp_bias"), HasSubstr("hidden_act"), HasSubstr("vocab_size")));
  }
}

TEST(HfConfig, WritesWhatItReads) {
  const LlamaDims written{24, 2, 6, 2, 40, 50, true, 500, 1e-3};
  const HfConfig read = parse_hf_config(hf_config_text(written, 128), "d");
  EXPECT_EQ(read.max_positions, 128);
  EXPECT_EQ(read.dims.dim, 24);
  EXPECT_EQ(read.dims.layers, 2);
  EXPECT_EQ(read.dims.heads, 6);
  EXPECT_EQ(read.dims.kv_heads, 2);
  EXPECT_EQ(read.dims.ffn_dim, 40);
  EXPECT_EQ(read.dims.vocab, 50);
  EXPECT_TRUE(read.dims.tied);
  EXPECT_EQ(read.dims.rope_theta, 500);
  EXPECT_EQ(read.dims.norm_eps, 1e-3);
}

TEST(HfConfig, KeepsTheKeysThatYokeDoesNotUse) {
  Json json = least();
  json.update({{"bos_token_id", 5},
               {"dtype", "bfloat16"},
               {"max_position_embeddings", 64},
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}}});
  const HfConfig from = parse_hf_config(json.dump(), "d");
  const Json kept = Json::parse(hf_config_text(from, 128));
  EXPECT_EQ(kept["bos_token_id"], 5);
  EXPECT_EQ(kept["rope_theta"], 7e5) << "for transformers 4";
  EXPECT_EQ(kept["rope_parameters"]["rope_theta"], 7e5);
  EXPECT_EQ(kept["torch_dtype"], "float32");
  EXPECT_FALSE(kept.contains("dtype"));
  EXPECT_EQ(kept["max_position_embeddings"], 128);
  EXPECT_EQ(Json::parse(hf_config_text(from, 32))["max_position_embeddings"], 64);
}

TEST(HfConfig, ExplainsWhichFolderItNeeds) {
  try {
    read_hf_config("meta-llama/Llama-3.2-1B");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
    EXPECT_THAT(
        e.what(),
        AllOf(HasSubstr("no meta-llama/Llama-3.2-1B/config.json"), HasSubstr("hf download")));
  }
}

}  // namespace
}  // namespace yoke
