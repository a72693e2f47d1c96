#include "core/model/llama.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "core/model/torch_model.hpp"
#include "tests/unit/model/neutral_driver.hpp"
#include "tests/unit/model/plain_model.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig small(bool tied = false) {
  ModelConfig c;
  c.dim = 24;
  c.layers = 2;
  c.heads = 6;
  c.kv_heads = 2;
  c.ffn_dim = 40;
  c.vocab = 50;
  c.tied = tied;
  return c;
}

TorchModelHost make_host(const ModelConfig& config, int32_t dtype, uint64_t seed = 3) {
  at::set_num_threads(1);  // threads would only slow down models this small
  return TorchModelHost(
      llama_family(config).make_blocks({.param_dtype = dtype}), dtype, seed, false);
}

TEST(Llama, HasTheLossAndGradientsOfPlainAutogradInFp64) {
  TestBatch batch(3, 11, 50, 1);
  const auto c = compare_with_plain<double>(small(), batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
}

TEST(Llama, HasTheLossAndGradientsOfPlainAutogradInFp32) {
  TestBatch batch(3, 11, 50, 1);
  const auto c = compare_with_plain<float>(small(), batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-6);
  EXPECT_LT(c.worst, 2e-5) << c.where;
}

TEST(Llama, AddsBothGradientsOfATiedHead) {
  TestBatch batch(2, 7, 50, 2);
  const auto c = compare_with_plain<double>(small(true), batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
}

// Positions are shuffled and differ in every row, so an assumption about them would fail.
TEST(Llama, TakesItsAnglesFromThePositionsGiven) {
  TestBatch batch(2, 9, 50, 3);
  for (size_t i = 0; i < batch.positions.size(); ++i)
    batch.positions[i] = static_cast<int64_t>((i * 37) % 101);
  const auto c = compare_with_plain<double>(small(), batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
}

// The buffer of a batch is reused, with different positions at the same address.
TEST(Llama, NoticesPositionsThatChangeInPlace) {
  TorchModelHost host = make_host(small(), YOKE_F64);
  NeutralDriver<double> driver(host.model());
  driver.bind_all();
  TestBatch batch(2, 9, 50, 3);
  const double before = driver.step(batch.micro(), 1);
  for (int64_t& p : batch.positions) p = (p * 5) % 7;
  const double changed = driver.step(batch.micro(), 1);
  for (size_t i = 0; i < batch.positions.size(); ++i)
    batch.positions[i] = static_cast<int64_t>(i) % 9;
  EXPECT_NE(before, changed);
  EXPECT_EQ(before, driver.step(batch.micro(), 1));
}

TEST(Llama, LeavesOutIgnoredTargets) {
  TestBatch batch(2, 8, 50, 4);
  for (size_t i = 0; i < batch.targets.size(); i += 3) batch.targets[i] = -100;
  const auto c = compare_with_plain<double>(small(), batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;

  TorchModelHost host = make_host(small(), YOKE_F64);
  NeutralDriver<double> driver(host.model());
  driver.bind_all();
  ManagedTensor carry;
  for (uint64_t b = 0; b < driver.blocks(); ++b) {
    const YokeForwardResult r =
        driver.forward(b, batch.micro(), carry ? &carry->tensor : nullptr, false);
    carry.reset(r.carry_out);
    if (b + 1 < driver.blocks()) continue;
    EXPECT_EQ(r.loss_weight, 10);
  }
}

// With bf16, views of parameters, carries and gradients are bf16 in the contract, but the loss is
// not.
TEST(Llama, RunsInBf16CloseToFp32) {
  TorchModelHost low = make_host(small(true), YOKE_BF16), high = make_host(small(true), YOKE_F32);
  NeutralDriver<c10::BFloat16> narrow(low.model());
  NeutralDriver<float> wide(high.model());
  for (size_t i = 0; i < wide.params(); ++i) {
    EXPECT_EQ(low.summary().params[i]->dtype, YOKE_BF16);
    wide.memory(i).assign(narrow.memory(i).begin(), narrow.memory(i).end());
  }
  narrow.bind_all();
  wide.bind_all();
  TestBatch batch(2, 8, 50, 4);
  const ManagedTensor carry(narrow.forward(0, batch.micro(), nullptr, false).carry_out);
  EXPECT_EQ(YOKE_DTYPE_OF(carry->tensor.dtype), YOKE_BF16);

  const double got = narrow.step(batch.micro(), 1.0 / 16),
               loss = wide.step(batch.micro(), 1.0 / 16);
  EXPECT_NEAR(got / loss, 1, 1e-3);
  EXPECT_NE(static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(got)))), got)
      << "the loss was rounded to bf16";
  for (size_t i = 0; i < wide.params(); ++i) {
    double difference = 0, whole = 0;
    for (size_t e = 0; e < wide.grads[i].size(); ++e) {
      const double g = wide.grads[i][e];
      difference += std::pow(static_cast<double>(narrow.grads[i][e]) - g, 2);
      whole += g * g;
    }
    // Each layer causes a few rounding errors of 2^-9. The error of a missing term is far above the
    // bound.
    EXPECT_LT(std::sqrt(difference / whole), 0.03) << wide.name(i);
  }
}

TEST(Llama, UsesTheNamesAndInitialValuesOfTheReference) {
  ModelConfig config;
  config.preset = "tiny";
  TorchModelHost host = make_host(config, YOKE_F32, 0);
  NeutralDriver<float> driver(host.model());
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < driver.params(); ++i) index[driver.name(i)] = i;
  EXPECT_EQ(driver.params(), 2u + 12 * 9 + 1);
  const auto& embed = driver.memory(index.at("model.embed_tokens.weight"));
  EXPECT_EQ(embed[0], -0.00891725998f);
  EXPECT_EQ(embed[3], -0.0174284503f);
  const auto& down = driver.memory(index.at("model.layers.0.mlp.down_proj.weight"));
  EXPECT_EQ(down[0], -0.000931249815f);
  EXPECT_EQ(down[1], 0.00639463356f);
  for (const char* name : {"model.layers.11.self_attn.q_proj.weight",
                           "model.layers.11.self_attn.k_proj.weight",
                           "model.layers.11.self_attn.v_proj.weight",
                           "model.layers.11.self_attn.o_proj.weight",
                           "model.layers.11.mlp.gate_proj.weight",
                           "model.layers.11.mlp.up_proj.weight",
                           "model.layers.11.input_layernorm.weight",
                           "model.layers.11.post_attention_layernorm.weight",
                           "model.norm.weight",
                           "lm_head.weight"}) {
    EXPECT_EQ(index.count(name), 1u) << name;
  }
  EXPECT_EQ(driver.memory(index.at("model.norm.weight"))[5], 1.0f);
}

int64_t params_of(const std::string& preset) {
  ModelConfig config;
  config.preset = preset;
  return llama_family(config).info({}).num_params;
}

TEST(Llama, HasThePresetsOfTheDesign) {
  EXPECT_EQ(params_of("tiny"), 869952);
  EXPECT_EQ(params_of("llama-14m"), 9668224);
  EXPECT_EQ(params_of("llama-60m"), 102898688);
  EXPECT_EQ(params_of("llama3-8b"), 8030261248);
  EXPECT_GT(params_of("novels"), 800000);
  EXPECT_LT(params_of("novels"), 3000000);
}

// As in torchtitan's plan, heads are not split, and a kv head is on the same rank as the query
// heads that read it.
TEST(Llama, DescribesWhereTensorParallelismMayCut) {
  FamilyArgs args;
  args.seq_len = 16;
  for (const bool tied : {false, true}) {
    const TorchModelHost host(llama_family(small(tied)).make_blocks(args), YOKE_F32, 1, true);
    const YokeModelSummary& s = host.summary();
    EXPECT_EQ(s.seq_len, 16);
    std::map<std::string, std::pair<int, int>> hints;  // tp_cut and tp_parts; first layer only
    for (uint64_t i = 0; i < s.num_params; ++i) {
      const std::string name(view(s.params[i]->name));
      if (name.find("layers.1.") != std::string::npos) continue;
      hints[name.substr(name.find_last_of('.', name.size() - 8) + 1)] = {
          s.params[i]->tp_cut, static_cast<int>(s.params[i]->tp_parts)};
    }
    std::map<std::string, std::pair<int, int>> expected = {
        {"embed_tokens.weight", {1, 50}},
        {"input_layernorm.weight", {YOKE_TP_WHOLE, 0}},
        {"q_proj.weight", {1, 6}},
        {"k_proj.weight", {1, 2}},
        {"v_proj.weight", {1, 2}},
        {"o_proj.weight", {2, 6}},
        {"post_attention_layernorm.weight", {YOKE_TP_WHOLE, 0}},
        {"gate_proj.weight", {1, 40}},
        {"up_proj.weight", {1, 40}},
        {"down_proj.weight", {2, 40}},
        {"norm.weight", {YOKE_TP_WHOLE, 0}},
    };
    if (!tied) expected["lm_head.weight"] = {1, 50};
    EXPECT_EQ(hints, expected);
  }
}

TEST(Llama, CountsTheParametersThatItBuilds) {
  for (const bool tied : {false, true}) {
    const TorchModelHost host = make_host(small(tied), YOKE_F32);
    int64_t built = 0;
    for (uint64_t i = 0; i < host.summary().num_params; ++i) {
      built += numel(host.summary().params[i]->shape, host.summary().params[i]->ndim);
    }
    EXPECT_EQ(llama_family(small(tied)).info({}).num_params, built);
  }
}

TEST(Llama, WritesTheConfigOfHuggingFace) {
  const ModelInfo info = llama_family(small(true)).info({.seq_len = 128});
  EXPECT_EQ(info.vocab, 50);
  EXPECT_THAT(info.hf_config_json,
              AllOf(HasSubstr("\"LlamaForCausalLM\""),
                    HasSubstr("\"num_key_value_heads\": 2,"),
                    HasSubstr("\"intermediate_size\": 40,"),
                    HasSubstr("\"tie_word_embeddings\": true,"),
                    HasSubstr("\"max_position_embeddings\": 128,")));
}

}  // namespace
}  // namespace yoke
