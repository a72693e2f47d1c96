// Models of Hugging Face as a new user meets them: which configurations start, and how the others
// are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRunFile[] = R"(
parallel_backend = "serial"
run.dir = "runs/t"
model.config = "config.json"
data.path = "text.txt"
data.seq_len = 32
train.steps = 1
train.global_batch = 2
checkpoint.every = 1
)";

json rotary(const char* model_type, const char* architecture, const json& change) {
  json config = {{"model_type", model_type},
                 {"architectures", {architecture}},
                 {"hidden_size", 32},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"intermediate_size", 48},
                 {"vocab_size", 256},
                 {"max_position_embeddings", 512},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", 1e-5},
                 {"torch_dtype", "bfloat16"}};
  config.update(change);
  return config;
}
json llama(const json& change) {
  return rotary("llama", "LlamaForCausalLM", change);
}

struct Row {
  const char* name;
  json config;
};

// The configurations that were tried as a new user would; only the first two started then.
std::vector<Row> eleven() {
  const json llama3 = {{"factor", 32.0},
                       {"high_freq_factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  const json qwen = {{"use_sliding_window", false},
                     {"sliding_window", 32768},
                     {"max_window_layers", 28},
                     {"rope_theta", 1000000.0},
                     {"tie_word_embeddings", true},
                     {"attention_dropout", 0.0}};
  json qwen3 = qwen;
  qwen3.update({{"head_dim", 16}, {"attention_bias", false}});
  return {
      {"llama_plain", llama({{"rope_theta", 10000.0}, {"rope_scaling", nullptr}})},
      {"llama_tied", llama({{"tie_word_embeddings", true}})},
      {"llama_3_2", llama({{"rope_scaling", llama3}, {"rope_theta", 500000.0}, {"head_dim", 8}})},
      {"qwen2", rotary("qwen2", "Qwen2ForCausalLM", qwen)},
      {"qwen3", rotary("qwen3", "Qwen3ForCausalLM", qwen3)},
      {"mistral", rotary("mistral", "MistralForCausalLM", {{"sliding_window", 16}})},
      {"mistral_without_window",
       rotary("mistral", "MistralForCausalLM", {{"sliding_window", nullptr}})},
      {"gpt2",
       {{"model_type", "gpt2"},
        {"architectures", {"GPT2LMHeadModel"}},
        {"activation_function", "gelu_new"},
        {"n_ctx", 512},
        {"n_embd", 32},
        {"n_head", 4},
        {"n_layer", 1},
        {"n_positions", 512},
        {"attn_pdrop", 0.1},
        {"embd_pdrop", 0.1},
        {"resid_pdrop", 0.1},
        {"vocab_size", 257}}},
      {"llama_with_attention_bias", llama({{"attention_bias", true}})},
      {"llama_with_head_dim", llama({{"head_dim", 32}})},
      {"llama_with_linear_rope", llama({{"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}})}};
}

struct Models : ::testing::Test {
  Models() { here.folder().write("run.toml", kRunFile); }
  SubprocessResult train(const json& config, const std::vector<std::string>& args = {}) const {
    here.folder().write("config.json", config.dump());
    std::vector<std::string> all{"train", "run.toml"};
    all.insert(all.end(), args.begin(), args.end());
    return here.yoke(all);
  }
  Playground here;
};

TEST_F(Models, AllElevenConfigurationsStart) {
  for (const Row& row : eleven()) {
    SCOPED_TRACE(row.name);
    const std::string dir = std::string("runs/") + row.name;
    const SubprocessResult result = train(row.config, {"run.dir=" + dir});
    ASSERT_TRUE(result.ending.ok()) << result.err << result.out;
    const json written =
        json::parse(read_file(here.folder() / (dir + "/checkpoints/step-00000001/config.json")));
    EXPECT_EQ(written["model_type"], row.config["model_type"]);
    EXPECT_EQ(written["architectures"], row.config["architectures"]);
    const SubprocessResult text = here.yoke(
        {"generate", dir + "/checkpoints/step-00000001", "--tokenizer", "bytes", "--tokens", "3"});
    EXPECT_TRUE(text.ending.ok()) << text.err;
  }
}

TEST_F(Models, ThatAreNotBuiltAreRefusedByNameInOneLine) {
  const std::pair<json, const char*> rows[] = {
      {{{"model_type", "gemma"}}, "model_type = \"gemma\"; allowed: \"gpt2\", \"llama\""},
      {{{"model_type", "mamba"}, {"hidden_size", nullptr}}, "model_type = \"mamba\""},
      {llama({{"rope_scaling", {{"type", "longrope"}}}}),
       "rope_type \"longrope\" is not supported"},
      {llama({{"hidden_act", "gelu"}}), "hidden_act = \"gelu\": other activations"},
  };
  for (const auto& [config, fragment] : rows) {
    const SubprocessResult result = train(config);
    EXPECT_EQ(result.ending.exit_code, 2);
    EXPECT_THAT(result.err, AllOf(HasSubstr(fragment), Not(HasSubstr("problems"))));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// Takes the configurations from the guide, as a reader would.
TEST_F(Models, FromScratchHaveTheShapesOfTheGuide) {
  const std::string guide = read_file(std::string(std::getenv("YOKE_SOURCE")) + "/docs/models.md");
  std::vector<std::string> families;
  const std::string open = "```json\n";
  for (size_t at = 0; (at = guide.find(open, at)) != std::string::npos; ++at) {
    const size_t begin = at + open.size();
    const json config = json::parse(guide.substr(begin, guide.find("```", begin) - begin));
    families.push_back(config.at("model_type"));
    const SubprocessResult r = train(config, {"run.dir=runs/" + families.back()});
    EXPECT_TRUE(r.ending.ok()) << r.err << r.out;
    EXPECT_THAT(r.out, Not(HasSubstr("dropout")));
  }
  EXPECT_EQ(families, (std::vector<std::string>{"gpt2", "qwen3"}));
}

TEST_F(Models, WithoutWeightsAreRefusedWithWhatTrainsThem) {
  here.folder().write("shape/config.json", llama(json::object()).dump());
  const SubprocessResult r = train({}, {"model.config=", "model.from=shape"});
  EXPECT_EQ(r.ending.exit_code, 2) << r.out;
  EXPECT_THAT(r.err, HasSubstr("set model.config = \"shape\" in place of model.from"));
  const SubprocessResult none = train({}, {"model.config="});
  EXPECT_EQ(none.ending.exit_code, 2) << none.out;
  EXPECT_THAT(none.err,
              AllOf(HasSubstr("no model is given; set model.preset (llama-14m, "),
                    HasSubstr("model.from"),
                    Not(HasSubstr("model.dim is not given"))));
}

TEST_F(Models, Gpt2SaysThatItTrainsWithoutDropout) {
  json config = eleven()[7].config;
  config.erase("attn_pdrop");
  config["resid_pdrop"] = 0.1;
  const SubprocessResult result = train(config);
  EXPECT_THAT(result.out + result.err,
              AllOf(HasSubstr("resid_pdrop = 0.1, attn_pdrop = 0.1 (the default of transformers)"),
                    HasSubstr("trains without dropout")));
  const SubprocessResult longer = train(config, {"data.seq_len=600", "run.dir=runs/longer"});
  EXPECT_EQ(longer.ending.exit_code, 2);
  EXPECT_THAT(longer.err, HasSubstr("data.seq_len = 600, but the model has a table of 512"));
}

TEST_F(Models, SayThatASequenceIsLongerThanThoseTheyKnow) {
  const SubprocessResult known = train(eleven()[0].config, {"data.seq_len=512"});
  EXPECT_TRUE(known.ending.ok()) << known.err;
  EXPECT_THAT(known.out, Not(HasSubstr("max_position_embeddings")));
  const SubprocessResult longer =
      train(eleven()[0].config, {"data.seq_len=513", "run.dir=runs/longer"});
  EXPECT_TRUE(longer.ending.ok()) << longer.err;
  EXPECT_THAT(longer.out, HasSubstr("data.seq_len = 513 is above max_position_embeddings = 512"));
}

TEST_F(Models, OfAnotherFamilyThanTheRunFileSaysAreRefused) {
  const SubprocessResult result = train(eleven()[4].config, {"model.family=llama"});
  EXPECT_EQ(result.ending.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("model.family = llama, but config.json has model_type = qwen3"));
}

}  // namespace
}  // namespace yoke::testing
