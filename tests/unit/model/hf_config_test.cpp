#include "core/model/hf_config.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

ModelDims dims(const Json& json) {
  return parse_hf_config(json.dump(), "d/config.json").dims;
}

TEST(HfConfig, HasTheDefaultsOfTransformers) {
  const ModelDims d = dims(least());
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
      {{{"model_type", "mixtral"}}, "model_type = \"mixtral\"; allowed: \"gpt2\", \"llama\""},
      {{{"model_type", nullptr}}, "model_type = null"},
      {{{"architectures", {"LlamaForSequenceClassification"}}}, "architectures = [\"LlamaForSeq"},
      {{{"hidden_act", "gelu"}}, "hidden_act = \"gelu\""},
      {{{"attention_dropout", 0.1}}, "attention_dropout = 0.1"},
      {{{"sliding_window", 16}}, "sliding_window = 16"},
      {{{"attention_bias", 1}}, "attention_bias = 1; allowed: true, false"},
      {{{"head_dim", 0}}, "head_dim = 0"},
      {{{"rope_scaling", {{"rope_type", "longrope"}}}}, "rope_type \"longrope\" is not supported"},
      {{{"rope_scaling", {{"type", "mrope"}}}}, "rope_type \"mrope\" is not supported"},
      {{{"rope_scaling", {{"type", "linear"}}}}, "rope_scaling: factor is missing"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}}},
       "factor = 0.5; allowed: at least 1"},
      {{{"rope_parameters", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}}}},
       "rope_parameters: high_freq_factor is missing"},
      {{{"rope_parameters",
         {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 4.0},
          {"high_freq_factor", 1.0}}}},
       "high_freq_factor = 1; allowed: above low_freq_factor = 4"},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}}}}, "differ between layers"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
        {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}},
       "contradicts rope_scaling"},
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

// Returns what is wrong with the file, one fault per line.
std::string faults(const Json& json) {
  try {
    dims(json);
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(HfConfig, NamesEveryFaultAtOnce) {
  Json json = least();
  json.update({{"mlp_bias", 3}, {"hidden_act", "relu"}, {"vocab_size", -1}});
  EXPECT_THAT(faults(json),
              AllOf(HasSubstr("mlp_bias"), HasSubstr("hidden_act"), HasSubstr("vocab_size")));
}

// The keys of a family that Yoke does not know mean nothing here.
TEST(HfConfig, NamesOnlyTheFamilyIfThatIsUnknown) {
  const std::string text = faults({{"model_type", "mamba"}, {"hidden_act", "relu"}});
  EXPECT_THAT(text, HasSubstr("model_type = \"mamba\""));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 0) << text;
}

// ---- Scaled rotary positions ----

RopeScaling scaling(const Json& change) {
  Json json = least();
  json["max_position_embeddings"] = 4096;
  json.update(change);
  return dims(json).rope;
}

TEST(HfConfig, ReadsEveryScalingOfBothGenerations) {
  using Kind = RopeScaling::Kind;
  const RopeScaling linear = scaling({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
  EXPECT_EQ(linear, (RopeScaling{Kind::kLinear, 2}));
  EXPECT_EQ(linear, scaling({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}}}));
  EXPECT_EQ(scaling({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.5}}}}),
            (RopeScaling{Kind::kDynamic, 2.5, 4096}));
  Json llama3 = {{"rope_type", "llama3"},
                 {"factor", 32.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 1024}};
  EXPECT_EQ(scaling({{"rope_scaling", llama3}}), (RopeScaling{Kind::kLlama3, 32, 1024, 1, 4}));
  llama3.erase("original_max_position_embeddings");
  EXPECT_EQ(scaling({{"rope_parameters", llama3}}).original_positions, 4096);
  EXPECT_EQ(scaling({{"rope_parameters", llama3}, {"original_max_position_embeddings", 77}})
                .original_positions,
            77);
}

TEST(HfConfig, DerivesTheAttentionFactorOfYarn) {
  Json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  const RopeScaling plain = scaling({{"rope_scaling", yarn}});
  EXPECT_EQ(plain.fast, 32);
  EXPECT_EQ(plain.slow, 1);
  EXPECT_DOUBLE_EQ(plain.attention_factor, 0.1 * std::log(4.0) + 1);
  yarn["factor"] = nullptr;  // the ratio of the lengths
  EXPECT_EQ(scaling({{"rope_scaling", yarn}}), plain);
  yarn.update({{"mscale", 0.5}, {"mscale_all_dim", 2.0}, {"truncate", false}});
  EXPECT_DOUBLE_EQ(scaling({{"rope_scaling", yarn}}).attention_factor,
                   (0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1));
  EXPECT_FALSE(scaling({{"rope_scaling", yarn}}).truncate);
  yarn["attention_factor"] = 1.25;
  EXPECT_EQ(scaling({{"rope_scaling", yarn}}).attention_factor, 1.25);
}

// A longer max_position_embeddings would change the angles, or the rows of a table.
TEST(HfConfig, RaisesTheLengthOnlyWhereThatDoesNotChangeTheModel) {
  const auto written = [](const Json& json) {
    return Json::parse(hf_config_text(parse_hf_config(json.dump(), "d"), 8192));
  };
  Json json = least();
  json["max_position_embeddings"] = 4096;
  EXPECT_EQ(written(json)["max_position_embeddings"], 8192);
  json["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 5e5}};
  EXPECT_EQ(written(json)["max_position_embeddings"], 4096);
  EXPECT_EQ(written(json)["rope_scaling"], (Json{{"rope_type", "dynamic"}, {"factor", 2.0}}))
      << "for transformers 4";
  EXPECT_EQ(parse_hf_config(written(json).dump(), "d").dims.rope,
            parse_hf_config(json.dump(), "d").dims.rope);
  const Json gpt2 = {{"model_type", "gpt2"}, {"n_positions", 64}};
  EXPECT_EQ(written(gpt2)["n_positions"], 64);
  EXPECT_FALSE(written(gpt2).contains("max_position_embeddings"));
}

// ---- Families ----

TEST(HfConfig, ReadsTheBiasesAndHeadsOfALlama) {
  Json json = least();
  json.update({{"attention_bias", true}, {"mlp_bias", true}, {"head_dim", 16}});
  const ModelDims d = dims(json);
  EXPECT_TRUE(d.qkv_bias && d.o_bias && d.mlp_bias);
  EXPECT_EQ(d.q_dim(), 128);
}

TEST(HfConfig, ReadsTheWindowOfMistral) {
  Json json = least();
  json["model_type"] = "mistral";
  EXPECT_EQ(dims(json).windows, std::vector<int64_t>(3, 4096)) << "the key is missing";
  EXPECT_EQ(dims(json).kv_heads, 8);
  json["sliding_window"] = nullptr;
  EXPECT_THAT(dims(json).windows, IsEmpty());
  json["sliding_window"] = 16;
  EXPECT_EQ(dims(json).windows, std::vector<int64_t>(3, 16));
}

TEST(HfConfig, ReadsTheLayersOfQwenThatHaveAWindow) {
  Json json = least();
  json.update({{"model_type", "qwen2"}, {"num_key_value_heads", 2}, {"sliding_window", 16}});
  EXPECT_TRUE(dims(json).qkv_bias);
  EXPECT_FALSE(dims(json).o_bias);
  EXPECT_EQ(dims(json).windows, std::vector<int64_t>(3, 0));
  json.update({{"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_EQ(dims(json).windows, (std::vector<int64_t>{0, 16, 16}));
  json["max_window_layers"] = 0;
  EXPECT_EQ(dims(json).windows, (std::vector<int64_t>{16, 16, 16}));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_EQ(dims(json).windows, (std::vector<int64_t>{16, 0, 0}));
  json["use_sliding_window"] = false;
  EXPECT_THAT(faults(json), HasSubstr("use_sliding_window is false"));
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_THAT(faults(json), HasSubstr("a list of 3 strings"));
  json["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_THAT(faults(json), HasSubstr("allowed: a list of"));
}

TEST(HfConfig, ReadsTheNormsOfQwen3) {
  Json json = least();
  json.update({{"model_type", "qwen3"}, {"num_key_value_heads", 2}});
  const ModelDims d = dims(json);
  EXPECT_TRUE(d.qk_norm);
  EXPECT_FALSE(d.qkv_bias);
  EXPECT_EQ(d.head_size(), 128) << "the key is missing";
}

TEST(HfConfig, ReadsGpt2WithItsDefaults) {
  const HfConfig config = parse_hf_config(R"({"model_type": "gpt2"})", "d");
  const ModelDims& d = config.dims;
  EXPECT_EQ(config.family, "gpt2");
  EXPECT_EQ(d.dim, 768);
  EXPECT_EQ(d.ffn_dim, 3072);
  EXPECT_EQ(d.positions, 1024);
  EXPECT_EQ(d.vocab, 50257);
  EXPECT_TRUE(d.tied);
  EXPECT_EQ(d.activation, Activation::kGeluTanh);
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("resid_pdrop = 0.1")));
  const Json no_dropout = {
      {"model_type", "gpt2"}, {"embd_pdrop", 0}, {"resid_pdrop", 0}, {"attn_pdrop", 0}};
  EXPECT_THAT(parse_hf_config(no_dropout.dump(), "d").notes, IsEmpty());
  EXPECT_THAT(
      faults({{"model_type", "gpt2"},
              {"activation_function", "relu"},
              {"scale_attn_by_inverse_layer_idx", true}}),
      AllOf(HasSubstr("activation_function = \"relu\""), HasSubstr("differs between layers")));
}

TEST(HfConfig, WritesWhatItReads) {
  const ModelDims written{24, 2, 6, 2, 40, 50, true, 500, 1e-3};
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

// transformers saves a model without a head under another name. What Yoke writes has a head.
TEST(HfConfig, MayBeThatOfAModelWithoutAHead) {
  Json json = least();
  json["architectures"] = {"LlamaModel"};
  const HfConfig from = parse_hf_config(json.dump(), "d");
  EXPECT_EQ(Json::parse(hf_config_text(from, 32))["architectures"],
            Json::array({"LlamaForCausalLM"}));
  json["architectures"] = {"GPT2Model"};
  EXPECT_THAT(faults(json), HasSubstr("allowed: [\"LlamaForCausalLM\"], [\"LlamaModel\"]"));
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
