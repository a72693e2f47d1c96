// A Llama whose layers are two blocks each (model.blocks = "half"), compared with whole layers.
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <gmock/gmock.h>

#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kVocab = 50;

TorchModelHost make_host(const std::string& blocks, int32_t dtype) {
  at::set_num_threads(1);  // threads would only slow down models this small
  ModelConfig config;
  config.dim = 24;
  config.layers = 2;
  config.heads = 6;
  config.kv_heads = 2;
  config.ffn_dim = 40;
  config.vocab = kVocab;
  config.blocks = blocks;
  const FamilyArgs args{.options = {}, .param_dtype = dtype, .seq_len = 0, .data_path = ""};
  return TorchModelHost(llama_family(config).make_blocks(args), dtype, 3, false);
}

// Returns "block: parameter parameter ..." for each block.
std::vector<std::string> parameters_of_blocks(const YokeModelSummary& model) {
  std::vector<std::string> texts;
  for (uint64_t b = 0; b < model.num_blocks; ++b) {
    const YokeBlock& block = *model.blocks[b];
    texts.push_back(std::string(view(block.name)) + ":");
    for (uint64_t i = 0; i < block.num_params; ++i) texts.back() += concat(" ", block.params[i]);
  }
  return texts;
}

TEST(HalfLayers, HaveTheParametersOfWholeLayers) {
  const TorchModelHost layers = make_host("layer", YOKE_F32), halves = make_host("half", YOKE_F32);
  EXPECT_THAT(parameters_of_blocks(layers.summary()),
              ElementsAre("model.embed_tokens: 0",
                          "model.layers.0: 1 2 3 4 5 6 7 8 9",
                          "model.layers.1: 10 11 12 13 14 15 16 17 18",
                          "lm_head: 19 20"));
  EXPECT_THAT(parameters_of_blocks(halves.summary()),
              ElementsAre("model.embed_tokens: 0",
                          "model.layers.0.self_attn: 1 2 3 4 5",
                          "model.layers.0.mlp: 6 7 8 9",
                          "model.layers.1.self_attn: 10 11 12 13 14",
                          "model.layers.1.mlp: 15 16 17 18",
                          "lm_head: 19 20"));
  EXPECT_EQ(view(layers.summary().more_blocks), "model.blocks = \"half\"");
  EXPECT_EQ(view(halves.summary().more_blocks), "");
  ASSERT_EQ(halves.summary().num_params, layers.summary().num_params);
  for (uint64_t p = 0; p < layers.summary().num_params; ++p)
    EXPECT_EQ(view(halves.summary().params[p]->name), view(layers.summary().params[p]->name));
}

// Returns the loss, and the gradients of all parameters.
template <class T>
std::pair<double, std::vector<std::vector<T>>> step_of(const std::string& blocks) {
  const TorchModelHost host = make_host(blocks, kDtype<T>);
  NeutralDriver<T> driver(host.model());
  driver.bind_all();
  TestBatch batch(2, 9, kVocab, 7);
  const double loss = driver.step(batch.micro(), 0.5);
  return {loss, driver.grads};
}

TEST(HalfLayers, HaveTheLossAndGradientsOfWholeLayersBitForBit) {
  EXPECT_EQ(step_of<double>("half"), step_of<double>("layer"));
  EXPECT_EQ(step_of<float>("half"), step_of<float>("layer"));
  EXPECT_EQ(step_of<at::BFloat16>("half"), step_of<at::BFloat16>("layer"));
}

}  // namespace
}  // namespace yoke
