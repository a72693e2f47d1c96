// Every family of Yoke, in each of its variants, against the plain model.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/model/rope.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/model/plain_model.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

// A rotary model with fewer positions in its pretraining than the sequences of these tests have.
Json rotary(const char* model_type, const Json& change = Json::object()) {
  Json json = {{"model_type", model_type},
               {"hidden_size", 24},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 6},
               {"num_key_value_heads", 2},
               {"head_dim", 4},
               {"intermediate_size", 40},
               {"vocab_size", 50},
               {"max_position_embeddings", 6}};
  json.update(change);
  return json;
}

Json gpt2(const Json& change = Json::object()) {
  Json json = {{"model_type", "gpt2"},
               {"n_embd", 24},
               {"n_layer", 2},
               {"n_head", 6},
               {"n_positions", 12},
               {"vocab_size", 50}};
  json.update(change);
  return json;
}

Json llama_with_rope(const Json& rope) {
  return rotary("llama", {{"head_dim", 12}, {"rope_theta", 300.0}, {"rope_scaling", rope}});
}

struct Variant {
  const char* name;
  Json config;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

std::vector<Variant> variants() {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 0.5},
                       {"high_freq_factor", 1.5},
                       {"original_max_position_embeddings", 6}};
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 2}, {"beta_slow", 0.1}};
  Json exact_yarn = yarn;
  exact_yarn["truncate"] = false;
  return {{"llama3", llama_with_rope(llama3)},
          {"linear", llama_with_rope({{"rope_type", "linear"}, {"factor", 3.0}})},
          {"dynamic", llama_with_rope({{"rope_type", "dynamic"}, {"factor", 3.0}})},
          {"yarn", llama_with_rope(yarn)},
          {"exact_yarn", llama_with_rope(exact_yarn)},
          {"wide_heads", rotary("llama", {{"head_dim", 16}})},
          {"attention_bias", rotary("llama", {{"attention_bias", true}})},
          {"all_biases",
           rotary("llama",
                  {{"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true}})},
          {"qwen2", rotary("qwen2")},
          {"qwen2_windows",
           rotary("qwen2",
                  {{"use_sliding_window", true}, {"sliding_window", 3}, {"max_window_layers", 1}})},
          {"qwen3", rotary("qwen3", {{"head_dim", 16}, {"tie_word_embeddings", true}})},
          {"qwen3_bias", rotary("qwen3", {{"attention_bias", true}})},
          {"mistral", rotary("mistral", {{"sliding_window", nullptr}, {"head_dim", 10}})},
          {"mistral_window", rotary("mistral", {{"sliding_window", 4}})},
          {"gpt2", gpt2()},
          {"gpt2_exact_gelu_untied",
           gpt2({{"n_head", 8},
                 {"n_inner", 40},
                 {"activation_function", "gelu"},
                 {"tie_word_embeddings", false}})}};
}

class Families : public ::testing::TestWithParam<Variant> {
 protected:
  Families() {
    temp_.write("config.json", GetParam().config.dump());
    config_.config = temp_.path().string();
  }
  testing::TempFolder temp_;
  ModelConfig config_;
};

TEST_P(Families, HaveTheLossAndGradientsOfThePlainModelInFp64) {
  TestBatch batch(3, 11, 50, 1);
  const Compared c = compare_with_plain<double>(config_, batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
}

TEST_P(Families, HaveThemInFp32) {
  TestBatch batch(2, 9, 50, 2);
  const Compared c = compare_with_plain<float>(config_, batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-6);
  EXPECT_LT(c.worst, 5e-5) << c.where;
}

TEST_P(Families, HaveThemInHalfLayers) {
  TestBatch batch(2, 9, 50, 3);
  config_.blocks = "half";
  const Compared c = compare_with_plain<double>(config_, batch);
  EXPECT_NEAR(c.loss / c.expected_loss, 1, 1e-14);
  EXPECT_LT(c.worst, 1e-12) << c.where;
}

// Cuts the sequences of a batch into documents, each of which ends after a token with an index
// (in the batch, not in the sequence) in `ends`, or with its sequence. Returns the documents as
// batches.
std::vector<std::unique_ptr<TestBatch>> cut_into_documents(TestBatch& batch,
                                                           const std::set<int64_t>& ends) {
  std::vector<std::unique_ptr<TestBatch>> documents;
  const int64_t n = batch.seq_len(), all = batch.sequences() * n;
  for (int64_t begin = 0, i = 0; i < all; ++i) {
    batch.document_starts.push_back(begin % n);
    batch.positions[static_cast<size_t>(i)] = i - begin;
    const bool window_ends = (i + 1) % n == 0;
    if (!window_ends && !ends.contains(i)) continue;
    // The target after the end of a document is a token of another document.
    if (!window_ends) batch.targets[static_cast<size_t>(i)] = -100;
    auto& alone = documents.emplace_back(std::make_unique<TestBatch>(1, i + 1 - begin, 50, 1));
    alone->tokens.assign(batch.tokens.begin() + begin, batch.tokens.begin() + i + 1);
    alone->targets.assign(batch.targets.begin() + begin, batch.targets.begin() + i + 1);
    begin = i + 1;
  }
  return documents;
}

// The second sequence is one document; the first token of the third is a document.
TEST_P(Families, TrainOnPackedDocumentsAsOnEachDocumentAlone) {
  at::set_num_threads(1);
  TestBatch packed(3, 11, 50, 4);
  const auto documents = cut_into_documents(packed, {4, 5, 22, 29});
  ASSERT_EQ(documents.size(), 7u);
  for (const char* blocks : {"layer", "half"}) {
    config_.blocks = blocks;
    FamilyArgs args;
    args.param_dtype = kDtype<double>;
    args.seq_len = packed.seq_len();
    const TorchModelHost host(
        builtin_family(config_).make_blocks(args), args.param_dtype, /*seed=*/3, false);
    NeutralDriver<double> together(host.model()), alone(host.model());
    together.bind_all();
    const double loss = together.step(packed.micro(), 0.5);
    alone.bind_all();
    double sum = 0;
    for (const auto& document : documents) sum += alone.step(document->micro(), 0.5);
    EXPECT_NEAR(loss / sum, 1, 1e-14);
    for (size_t i = 0; i < together.params(); ++i) {
      double largest = 0, error = 0;
      for (size_t e = 0; e < together.grads[i].size(); ++e) {
        largest = std::max(largest, std::fabs(alone.grads[i][e]));
        error = std::max(error, std::fabs(together.grads[i][e] - alone.grads[i][e]));
      }
      EXPECT_LE(error, 1e-12 * largest + 1e-15) << together.name(i);
    }
  }
}

TEST_P(Families, CountTheParametersThatTheyBuild) {
  const TorchModelHost host(builtin_family(config_).make_blocks({}), YOKE_F32, 1, false);
  int64_t built = 0;
  for (uint64_t i = 0; i < host.summary().num_params; ++i) {
    built += numel(host.summary().params[i]->shape, host.summary().params[i]->ndim);
  }
  EXPECT_EQ(model_info(config_, 6).num_params, built);
}

TEST_P(Families, DescribeHowEveryParameterMayBeCut) {
  const TorchModelHost host(builtin_family(config_).make_blocks({}), YOKE_F32, 1, false);
  for (uint64_t i = 0; i < host.summary().num_params; ++i)
    EXPECT_NE(host.summary().params[i]->tp_cut, 0) << view(host.summary().params[i]->name);
}

INSTANTIATE_TEST_SUITE_P(Variants, Families, ::testing::ValuesIn(variants()), [](const auto& info) {
  return std::string(info.param.name);
});

// ---- GPT-2 ----

struct Gpt2 : ::testing::Test {
  Gpt2() { config.config = temp.write("config.json", gpt2().dump()); }
  testing::TempFolder temp;
  ModelConfig config;
};

// The weights of queries, keys and values have another shape in files. In their bias, that is the
// shape which decides about weight decay.
TEST_F(Gpt2, DecaysWhatIsAMatrixInFiles) {
  const TorchModelHost host(builtin_family(config).make_blocks({}), YOKE_F32, 1, true);
  for (uint64_t i = 0; i < host.summary().num_params; ++i) {
    const YokeParameter& p = *host.summary().params[i];
    const std::string_view name = view(p.name);
    const bool matrix = name.ends_with(".weight") && name.find("ln_") == name.npos;
    EXPECT_EQ(p.decay, matrix ? 1 : 0) << name;
  }
}

TEST_F(Gpt2, RefusesSequencesThatAreLongerThanItsTable) {
  EXPECT_NO_THROW(model_info(config, 12));
  EXPECT_THROW(model_info(config, 13), Error);
}

TEST_F(Gpt2, RefusesProductsInFp8) {
  PrecisionConfig precision;
  precision.product = "fp8";
  EXPECT_THROW(builtin_family(config, precision).make_blocks({}), Error);
}

TEST_F(Gpt2, RefusesAStoredShapeWithOtherElements) {
  BlockList blocks = builtin_family(config).make_blocks({});
  blocks.stored_shapes["transformer.h.0.attn.c_attn.bias"] = {71};
  EXPECT_THROW(TorchModelHost(std::move(blocks), YOKE_F32, 1, false), Error);
}

// ---- Scaled frequencies ----

TEST(RopeFrequencies, EqualThoseOfThePlainModelForEveryScaling) {
  for (const Variant& variant : variants()) {
    testing::TempFolder temp;
    ModelConfig config;
    config.config = temp.write("config.json", variant.config.dump());
    const ModelDims d = model_dims(config);
    if (d.positions > 0) continue;
    for (const int64_t seq_len : {5, 6, 7, 40}) {
      const at::Tensor got = RopeCache(d, seq_len).frequencies(seq_len, at::kDouble);
      const at::Tensor expected = at::tensor(PlainModel::frequencies(d, seq_len), at::kDouble);
      EXPECT_TRUE(at::allclose(got, expected, 1e-13, 0)) << variant.name << " " << seq_len;
    }
  }
}

// Without a length of the sequences, as in sampling, it follows from the positions.
TEST(RopeFrequencies, GrowWithThePositionsIfThereIsNoLength) {
  testing::TempFolder temp;
  ModelConfig config;
  config.config = temp.write("config.json",
                             llama_with_rope({{"rope_type", "dynamic"}, {"factor", 3.0}}).dump());
  const ModelDims d = model_dims(config);
  RopeCache open(d, 0), fixed(d, 20), shorter(d, 6);
  const at::Tensor positions = at::arange(20).unsqueeze(0);
  EXPECT_TRUE(
      at::equal(open.angles(positions, at::kDouble).cos, fixed.angles(positions, at::kDouble).cos));
  EXPECT_FALSE(at::equal(open.angles(positions, at::kDouble).cos,
                         shorter.angles(positions, at::kDouble).cos));
}

}  // namespace
}  // namespace yoke
