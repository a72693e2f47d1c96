// Fine-tuning as a user does it: frozen parameters and low-rank adapters in every layout, from
// weights to an export.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// A run from weights in the folder "hf", in fp64.
constexpr char kRunFile[] = R"(
parallel_backend = "serial"
run.dir = "runs/t"
model.from = "hf"
data.path = "text.txt"
data.seq_len = 32
train.steps = 6
train.lr = 1e-2
train.global_batch = 4
precision.param = "fp64"
checkpoint.every = 3
metrics.every = 1
)";
const Words kAdapters = {"lora.rank=4", "lora.alpha=8", R"(lora.targets=["q_proj", "down_proj"])"};

class FineTuning : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<Playground>();
    ASSERT_TRUE(made_->yoke({"train", "run.toml", "train.steps=2", "model.layers=2"}).ending.ok());
    const SubprocessResult exported =
        made_->yoke({"checkpoint", "export", "runs/r/checkpoints/step-00000002", "-o", "hf"});
    ASSERT_TRUE(exported.ending.ok()) << exported.err;
  }
  static void TearDownTestSuite() { made_.reset(); }

  FineTuning() {
    fs::copy(made_->folder() / "hf", here_.folder() / "hf");
    here_.folder().write("t.toml", kRunFile);
  }

  std::string path(const std::string& name) const { return here_.folder() / name; }
  SubprocessResult yoke(const Words& words) const { return here_.yoke(words); }
  // Trains in the folder runs/`name`; returns the losses.
  std::vector<double> train(const std::string& name, Words words, const Words& more) const {
    words.insert(words.begin(), {"train", "t.toml", "run.dir=runs/" + name});
    words.insert(words.end(), more.begin(), more.end());
    const SubprocessResult r = yoke(words);
    EXPECT_TRUE(r.ending.ok()) << r.err;
    return r.ending.ok() ? logged_losses(path("runs/" + name)) : std::vector<double>{};
  }
  void export_to(const std::string& name,
                 const std::string& folder,
                 const Words& flags = {}) const {
    Words words{
        "checkpoint", "export", "runs/" + name + "/checkpoints/step-00000006", "-o", folder};
    words.insert(words.end(), flags.begin(), flags.end());
    const SubprocessResult r = yoke(words);
    EXPECT_TRUE(r.ending.ok()) << r.err;
  }

  // Trains in all layouts and expects the losses of one process.
  void expect_equal_layouts(const Words& model) const {
    const std::vector<double> plain = train("plain", model, {});
    ASSERT_EQ(plain.size(), 6);
    EXPECT_LT(plain.back(), plain.front());
    int number = 0;
    for (const Words& layout :
         {Words{"parallel_backend=ptd", "--nproc", "2", "dp_shards=2"},
          Words{"parallel_backend=ptd", "--nproc", "2", "tp_degree=2"},
          Words{"parallel_backend=ptd", "--nproc", "2", "cp_degree=2"},
          Words{"parallel_backend=ptd", "--nproc", "2", "pp_degree=2"},
          Words{"parallel_backend=ptd", "--virtual", "4", "dp_shards=2", "tp_degree=2"},
          Words{"parallel_backend=deepspeed_stub", "--nproc", "2", "deepspeed_stub.zero_stage=3"},
          Words{"parallel_backend=accelerate_compat", "--nproc", "2"},
          Words{"parallel_backend=megatron_compat", "--nproc", "2"}}) {
      const std::vector<double> losses = train("layout" + std::to_string(++number), model, layout);
      ASSERT_EQ(losses.size(), plain.size());
      for (size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i] / plain[i], 1, 1e-12) << layout[0] << ' ' << layout.back();
    }
  }

  static std::unique_ptr<Playground> made_;
  Playground here_;
};
std::unique_ptr<Playground> FineTuning::made_;

TEST_F(FineTuning, OfAdaptersHasEqualLossesInEveryLayout) {
  expect_equal_layouts(kAdapters);
}

TEST_F(FineTuning, OfAPartHasEqualLossesInEveryLayout) {
  expect_equal_layouts({R"(model.freeze=["embed_tokens", "layers.0", "layers.*.mlp"])"});
}

// A checkpoint with adapters continues a text like its export, in which they are merged, and its
// adapters are the start of another run.
TEST_F(FineTuning, EndsInExportsThatMeanTheSame) {
  const std::vector<double> whole = train("whole", kAdapters, {});
  export_to("whole", "merged");
  export_to("whole", "adapters", {"--adapter"});
  EXPECT_FALSE(fs::exists(path("merged/adapter_config.json")));
  const auto text = [&](const std::string& model) {
    const SubprocessResult r =
        yoke({"generate", model, "--tokenizer", "bytes", "--temperature", "0", "--tokens", "20"});
    EXPECT_TRUE(r.ending.ok()) << r.err;
    return r.out;
  };
  EXPECT_EQ(text("runs/whole/checkpoints/step-00000006"), text("merged"));

  // Both start with the loss that the run would have had next; exports are rounded to fp32.
  const Words once{"train.steps=1", "data.order=sequential"};
  Words again = kAdapters;
  again.emplace_back("lora.from=" + path("adapters"));
  const double continued = train("again", again, once).at(0);
  EXPECT_NEAR(train("from_merged", {"model.from=merged"}, once).at(0) / continued, 1, 1e-6);
  Words inner = kAdapters;
  inner.emplace_back("model.from=runs/whole/checkpoints/step-00000006");
  EXPECT_NEAR(train("from_checkpoint", inner, once).at(0) / continued, 1, 1e-6);
  EXPECT_GT(std::abs(train("base", kAdapters, once).at(0) / continued - 1), 1e-4);
  const SubprocessResult other = yoke({"train", "t.toml", inner.back(), "lora.rank=4", inner[2]});
  EXPECT_EQ(other.ending.exit_code, 2);
  EXPECT_THAT(other.err,
              HasSubstr("lora.alpha = 4, but runs/whole/checkpoints/step-00000006 has 8"));
}

TEST_F(FineTuning, ResumesBitForBit) {
  const std::vector<double> whole = train("whole", kAdapters, {});
  const std::vector<double> first = train("parts", kAdapters, {"train.steps=6"});
  fs::remove_all(path("runs/parts/checkpoints/step-00000006"));
  const std::vector<double> second =
      train("parts", kAdapters, {"checkpoint.resume=auto", "--nproc", "2", "parallel_backend=ptd"});
  ASSERT_EQ(whole.size(), 6);
  EXPECT_EQ(first, whole);
  ASSERT_GE(second.size(), 3);
  EXPECT_NEAR(second.back() / whole.back(), 1, 1e-14);
}

TEST_F(FineTuning, IsRefusedIfItsKeysContradict) {
  const auto refused = [&](Words words, const std::string& text) {
    words.insert(words.begin(), {"train", "t.toml"});
    const SubprocessResult r = yoke(words);
    EXPECT_EQ(r.ending.exit_code, 2);
    EXPECT_THAT(r.err, HasSubstr(text));
  };
  refused({"lora.alpha=4"}, "lora.alpha = 4.0 (command line) has no effect with lora.rank = 0");
  refused({R"(lora.targets=["k_proj"])"}, "has no effect with lora.rank = 0");
  refused({"lora.rank=2", R"(model.freeze=["lm_head"])"},
          "has no effect with lora.rank = 2 (command line), because only the adapters are trained");
  refused({"model.from=", "model.preset=tiny", "lora.rank=2", "lora.from=x"},
          "needs the weights that its adapters belong to");
  refused({"lora.rank=2", "lora.from=hf"}, "hf has no adapter_config.json");
  refused({R"(model.freeze=["embed"])"}, "model.freeze: \"embed\" names no parameter");
  EXPECT_EQ(train("full", {}, {}).size(), 6);
  const SubprocessResult r =
      yoke({"checkpoint", "export", "runs/full/checkpoints/step-00000006", "-o", "x", "--adapter"});
  EXPECT_EQ(r.ending.exit_code, 2);
  EXPECT_THAT(r.err, HasSubstr("has no adapters, because its run had lora.rank = 0"));
}

}  // namespace
}  // namespace yoke::testing
