// Every family of core/model in every kind of layout of ptd trains like one rank of `serial`, the
// plainest backend, which runs the same blocks one after the other. tests/unit/model compares these
// blocks with a plain model.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <sstream>

#include "tests/ranks/parity_program.hpp"

namespace yoke::testing {
namespace {

using Args = std::vector<std::string>;

constexpr int64_t kSteps = 5;
constexpr double kLoss = 1e-12, kNorm = 1e-10;

PlainRun problem() {
  PlainRun run;
  run.steps = kSteps;
  run.fp64 = true;
  return run;
}

struct Model {
  const char* name;
  const char* config;
};
constexpr Model kGpt2{
    "gpt2",
    R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 256,
         "n_positions": 64})"};
// The sequences are longer than the windows and than the lengths of the pretraining.
constexpr Model kModels[] = {
    {"llama3",
     R"({"model_type": "llama", "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 44, "vocab_size": 256,
         "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true,
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0,
           "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8}})"},
    {"dynamic",
     R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 44, "vocab_size": 256, "max_position_embeddings": 8,
         "rope_scaling": {"type": "dynamic", "factor": 2.0}})"},
    {"yarn",
     R"({"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 44, "vocab_size": 256, "max_position_embeddings": 8,
         "rope_scaling": {"type": "yarn", "factor": 4.0}})"},
    {"qwen2",
     R"({"model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 44, "vocab_size": 256,
         "use_sliding_window": true, "sliding_window": 5, "max_window_layers": 1})"},
    {"qwen3",
     R"({"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 44, "vocab_size": 256,
         "tie_word_embeddings": true})"},
    {"mistral",
     R"({"model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 44,
         "vocab_size": 256, "sliding_window": 7})"},
    kGpt2,
    {"gpt2_odd_vocabulary",
     R"({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 257,
         "n_positions": 64, "n_inner": 44, "tie_word_embeddings": false})"},
};

// Each runs as threads of one process. tests/unit/ptd/degrees_test.cpp has random layouts.
constexpr std::pair<const char*, const char*> kLayouts[] = {
    {"ddp_2", "dp_degree=2"},
    {"shards_2", "dp_shards=2"},
    {"tp_2", "tp_degree=2"},
    {"cp_2", "cp_degree=2"},
    {"pp_2", "pp_degree=2 train.micro_batch=1"},
};

// Returns the arguments of a layout, split at spaces, with the number of its ranks.
Args arguments(const std::string& layout) {
  Args args;
  int ranks = 1;
  std::istringstream words(layout);
  for (std::string word; words >> word;) {
    const bool degree = word.find("_degree=") != word.npos || word.find("dp_shards=") == 0;
    if (degree) ranks *= word.back() - '0';
    args.push_back(word);
  }
  args.insert(args.end(), {"parallel_backend=ptd", "ptd.unit_bytes=1", "verify.every=1"});
  args.insert(args.end(), {"--virtual", std::to_string(ranks)});
  return args;
}

void expect_close(const std::vector<double>& got,
                  const std::vector<double>& expected,
                  double bound,
                  const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::fabs(got[i] - expected[i]), bound * std::fabs(expected[i]))
        << what << " of step " << i + 1 << ": " << got[i] << ", one rank: " << expected[i];
  }
}

class ParityOfFamilies : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    if (!backend_built("ptd")) GTEST_SKIP() << "no backend ptd in this build";
  }
};

// Trains in every kind of layout and compares with one rank. keys: more keys of all runs.
void expect_parity(const PlainRun& run, const Model& model, const Args& keys = {}) {
  ParityProgram program(run, parity_text(1 << 15), model.config);
  const auto with_keys = [&](Args args) {
    args.insert(args.end(), keys.begin(), keys.end());
    return args;
  };
  const ProgramRun one = program.train(keys);
  ASSERT_EQ(one.exit_code, 0) << one.output;
  ASSERT_LT(one.losses().back(), one.losses().front()) << "the problem teaches nothing";
  for (const auto& [name, layout] : kLayouts) {
    SCOPED_TRACE(name);
    const ProgramRun ours = program.train(with_keys(arguments(layout)));
    ASSERT_EQ(ours.exit_code, 0) << ours.output;
    expect_close(ours.losses(), one.losses(), kLoss, "loss");
    expect_close(ours.grad_norms(), one.grad_norms(), kNorm, "grad_norm");
  }
  if (!backend_built("deepspeed_stub")) return;
  const ProgramRun zero = program.train(with_keys(
      {"parallel_backend=deepspeed_stub", "deepspeed_stub.zero_stage=3", "--virtual", "2"}));
  ASSERT_EQ(zero.exit_code, 0) << zero.output;
  expect_close(zero.losses(), one.losses(), kLoss, "loss of ZeRO");
}

TEST_P(ParityOfFamilies, EveryLayoutTrainsLikeOneRank) {
  expect_parity(problem(), GetParam());
}

// Some documents are longer than the windows of the models, others are shorter.
TEST_P(ParityOfFamilies, EveryLayoutTrainsOnPackedDocumentsLikeOneRank) {
  PlainRun run = problem();
  run.document_end = 'e';
  expect_parity(run, GetParam());
}

// The adapter of GPT-2's c_attn is cut by heads in three places.
TEST(Gpt2, TrainsAdaptersInEveryLayoutLikeOneRank) {
  if (!backend_built("ptd")) GTEST_SKIP() << "no backend ptd in this build";
  expect_parity(problem(),
                kGpt2,
                {"lora.rank=3", R"(lora.targets=["c_attn", "c_proj", "c_fc"])", "train.lr=1e-2"});
}

// A checkpoint of one layout continues in another one. The weights of GPT-2 have another shape in
// files than in the model.
TEST(Gpt2, ContinuesInAnotherLayout) {
  if (!backend_built("ptd")) GTEST_SKIP() << "no backend ptd in this build";
  ParityProgram program(problem(), parity_text(1 << 15), kGpt2.config);
  const ProgramRun one = program.train({"checkpoint.every=2"});
  ASSERT_EQ(one.exit_code, 0) << one.output;
  Args args = arguments("dp_shards=2 tp_degree=2");
  args.push_back("checkpoint.resume=" + one.checkpoint(2));
  args.push_back("checkpoint.every=2");
  const ProgramRun ours = program.train(args);
  ASSERT_EQ(ours.exit_code, 0) << ours.output;
  const std::vector<double> all = one.losses();
  expect_close(ours.losses(), {all.begin() + 2, all.end()}, kLoss, "loss");
  const auto got = read_safetensors(ours.checkpoint(4) + "/model.safetensors");
  const auto expected = read_safetensors(one.checkpoint(4) + "/model.safetensors");
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(got.at(name).size(), values.size()) << name;
    // The gradient of a key's bias in GPT-2 is zero up to rounding, which AdamW amplifies.
    if (name.ends_with("c_attn.bias")) continue;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(got.at(name)[i], values[i], 1e-9) << name << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         ParityOfFamilies,
                         ::testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace yoke::testing
