// Frozen parameters and low-rank adapters. The reference adds the product of an adapter to its
// weight before it multiplies.
#include "core/model/adapters.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/temp_folder.hpp"
#include "tests/unit/model/plain_model.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

ModelConfig small() {
  ModelConfig config;
  config.dim = 24;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.ffn_dim = 40;
  config.vocab = 50;
  return config;
}

ModelConfig with_adapters(const std::vector<std::string>& targets) {
  ModelConfig config = small();
  config.lora.rank = 3;
  config.lora.alpha = 4.5;
  config.lora.targets = targets;
  return config;
}

const std::vector<std::string>& all_matrices() {
  static const std::vector<std::string> names = {
      "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"};
  return names;
}

TorchModelHost host_of(BlockList list) {
  return {std::move(list), YOKE_F32, /*seed=*/1, false};
}

std::set<std::string> trainable(const TorchModelHost& host) {
  std::set<std::string> names;
  for (uint64_t i = 0; i < host.summary().num_params; ++i) {
    const YokeParameter& p = *host.summary().params[i];
    if (p.trainable != 0) names.emplace(view(p.name));
  }
  return names;
}

std::string message(const ModelConfig& config, const std::vector<std::string>& patterns = {}) {
  try {
    with_frozen(builtin_family(config), patterns).make_blocks({});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

// Compares loss and gradients with those of a plain model whose matrices are merged.
void expect_like_merged_model(const ModelConfig& config) {
  TestBatch batch(3, 11, 50, 1), same(3, 11, 50, 1);
  const Compared c = compare_with_plain<double>(config, batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
  EXPECT_LT(compare_with_plain<float>(config, same).worst, 5e-5);
}

TEST(Adapters, HaveTheLossAndGradientsOfTheMergedModel) {
  for (const auto& targets :
       {all_matrices(), {"v_proj"}, {"layers.1.self_attn.o_proj", "q_proj"}}) {
    for (const char* blocks : {"layer", "half"}) {
      ModelConfig config = with_adapters(targets);
      config.blocks = blocks;
      expect_like_merged_model(config);
    }
  }
}

// The matrices of GPT-2 are [in, out], and one of them has three outputs for each column.
class AdaptersOfGpt2 : public ::testing::Test {
 protected:
  AdaptersOfGpt2() {
    temp_.write("config.json",
                R"({"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 6, "n_inner": 40,
                    "n_positions": 12, "vocab_size": 50, "tie_word_embeddings": false})");
  }
  ModelConfig with(const std::vector<std::string>& targets) const {
    ModelConfig config;
    config.config = temp_.path().string();
    config.lora.rank = 3;
    config.lora.alpha = 4.5;
    config.lora.targets = targets;
    return config;
  }
  testing::TempFolder temp_;
};
const std::vector<std::string> kMatricesOfGpt2 = {"c_attn", "c_proj", "c_fc", "lm_head"};

TEST_F(AdaptersOfGpt2, HaveTheLossAndGradientsOfTheMergedModel) {
  for (const auto& targets : {kMatricesOfGpt2, {"c_attn"}, {"h.1.mlp.c_proj", "h.0.mlp.c_fc"}}) {
    for (const char* blocks : {"layer", "half"}) {
      ModelConfig config = with(targets);
      config.blocks = blocks;
      expect_like_merged_model(config);
    }
  }
}

TEST_F(AdaptersOfGpt2, AreCutLikeTheirMatrix) {
  const BlockList list = builtin_family(with(kMatricesOfGpt2)).make_blocks({});
  const auto expect = [&](const std::string& name, int32_t cut_of_a, TpHint b) {
    EXPECT_EQ(list.tp(name + ".lora_A.weight").cut, cut_of_a) << name;
    EXPECT_EQ(list.tp(name + ".lora_B.weight").cut, b.cut) << name;
    EXPECT_EQ(list.tp(name + ".lora_B.weight").parts, b.parts) << name;
  };
  const std::string layer = "transformer.h.1.";
  expect(layer + "attn.c_attn", YOKE_TP_WHOLE, TpHint::along(1, 6));
  expect(layer + "attn.c_proj", 2, TpHint::whole());
  expect(layer + "mlp.c_fc", YOKE_TP_WHOLE, TpHint::along(0, 40));
  expect(layer + "mlp.c_proj", 2, TpHint::whole());
  expect("lm_head", YOKE_TP_WHOLE, TpHint::along(0, 50));
  host_of(list);  // checks that the hints fit the shapes
}

// Files have A and B as PEFT writes them: [rank, in] and [out, rank].
TEST_F(AdaptersOfGpt2, HaveTheShapesOfPeftInFiles) {
  const BlockList list = builtin_family(with({"c_attn", "c_fc"})).make_blocks({});
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& [name, leaf] : list.params[2]) {
    const auto stored = list.stored_shapes.find(name);
    if (is_adapter(name))
      shapes[name] = stored == list.stored_shapes.end() ? leaf.sizes().vec() : stored->second;
  }
  const std::string layer = "transformer.h.1.";
  const std::map<std::string, std::vector<int64_t>> expected = {
      {layer + "attn.c_attn.lora_A.weight", {3, 24}},
      {layer + "attn.c_attn.lora_B.weight", {72, 3}},
      {layer + "mlp.c_fc.lora_A.weight", {3, 24}},
      {layer + "mlp.c_fc.lora_B.weight", {40, 3}}};
  EXPECT_EQ(shapes, expected);
}

// PEFT's key says whether matrices are [in, out]; the head never is.
TEST_F(AdaptersOfGpt2, DescribeTheirMatricesAsPeftDoes) {
  EXPECT_TRUE(adapter_config(with({"c_attn"})).fan_in_fan_out);
  EXPECT_TRUE(adapter_config(with({"lm_head", "c_fc"})).fan_in_fan_out);
  EXPECT_FALSE(adapter_config(with({"lm_head"})).fan_in_fan_out);
  EXPECT_FALSE(adapter_config(with_adapters({"q_proj"})).fan_in_fan_out);
  const AdapterConfig read =
      parse_adapter_config(adapter_config_text(adapter_config(with({"c_attn"})), "base"), "here");
  EXPECT_TRUE(read.input_first("transformer.h.0.attn.c_attn.weight"));
  EXPECT_FALSE(read.input_first("lm_head.weight"));
}

TEST(Adapters, AreAllThatIsTrained) {
  const TorchModelHost host =
      host_of(builtin_family(with_adapters({"layers.0.self_attn.q_proj"})).make_blocks({}));
  const std::string q = "model.layers.0.self_attn.q_proj.";
  EXPECT_EQ(trainable(host), (std::set<std::string>{q + "lora_A.weight", q + "lora_B.weight"}));
}

// A side that tensor parallelism cuts is cut in the adapter, too.
TEST(Adapters, AreCutLikeTheirMatrix) {
  const BlockList list = builtin_family(with_adapters(all_matrices())).make_blocks({});
  const auto expect = [&](const char* matrix, int32_t cut_of_a, int32_t cut_of_b) {
    const std::string name = std::string("model.layers.1.") + matrix;
    EXPECT_EQ(list.tp(name + ".lora_A.weight").cut, cut_of_a) << matrix;
    EXPECT_EQ(list.tp(name + ".lora_B.weight").cut, cut_of_b) << matrix;
  };
  expect("self_attn.k_proj", YOKE_TP_WHOLE, 1);
  expect("self_attn.o_proj", 2, YOKE_TP_WHOLE);
  expect("mlp.up_proj", YOKE_TP_WHOLE, 1);
  expect("mlp.down_proj", 2, YOKE_TP_WHOLE);
  EXPECT_EQ(list.tp("model.layers.1.self_attn.k_proj.lora_B.weight").parts, 2);
  host_of(list);  // checks that the hints fit the shapes
}

TEST(Adapters, NeedTargetsThatExist) {
  EXPECT_THAT(message(with_adapters({"q_porj"})),
              HasSubstr("lora.targets: \"q_porj\" names no matrix of a linear layer; did you mean "
                        "'q_proj'?"));
  EXPECT_THAT(
      message(with_adapters({"c_attn"})),
      HasSubstr(
          "allowed: names of matrices or ends of such names: down_proj, gate_proj, k_proj, "));
  EXPECT_THAT(message(with_adapters({"proj"})), HasSubstr("\"proj\" names no matrix"));
  EXPECT_THAT(message(with_adapters({"input_layernorm"})), HasSubstr("names no matrix"));
  EXPECT_THAT(message(with_adapters({})), HasSubstr("lora.targets is empty"));
  ModelConfig tied = with_adapters({"lm_head"});
  tied.tied = true;
  EXPECT_THAT(message(tied), HasSubstr("lm_head shares its matrix with the embedding"));
}

TEST(FrozenParameters, AreThoseThatThePatternsName) {
  const auto frozen = [](const std::vector<std::string>& patterns) {
    const TorchModelHost all = host_of(builtin_family(small()).make_blocks({}));
    const TorchModelHost host =
        host_of(with_frozen(builtin_family(small()), patterns).make_blocks({}));
    std::set<std::string> names = trainable(all);
    for (const std::string& name : trainable(host)) names.erase(name);
    return names;
  };
  EXPECT_EQ(frozen({}), std::set<std::string>{});
  EXPECT_EQ(frozen({"embed_tokens"}), std::set<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(frozen({"layers.1.mlp", "lm_head.weight"}),
            (std::set<std::string>{"model.layers.1.mlp.gate_proj.weight",
                                   "model.layers.1.mlp.up_proj.weight",
                                   "model.layers.1.mlp.down_proj.weight",
                                   "lm_head.weight"}));
  EXPECT_EQ(frozen({"layers.*.q_proj"}),
            (std::set<std::string>{"model.layers.0.self_attn.q_proj.weight",
                                   "model.layers.1.self_attn.q_proj.weight"}));
  EXPECT_EQ(frozen({"layers"}).size(), 18);
}

TEST(FrozenParameters, NeedPatternsThatNameSomeButNotAll) {
  EXPECT_THAT(message(small(), {"embed_token"}),
              HasSubstr("model.freeze: \"embed_token\" names no parameter; did you mean "
                        "'embed_tokens"));
  EXPECT_THAT(message(small(), {"model", "lm_head"}),
              HasSubstr("model.freeze names every parameter"));
}

}  // namespace
}  // namespace yoke
