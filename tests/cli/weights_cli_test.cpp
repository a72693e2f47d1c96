// Runs the real program on weight files and token files, both valid and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/cli/playground.hpp"

namespace yoke::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kRunFile[] = R"(
parallel_backend = "serial"
run.dir = "runs/t"
model.from = "hf"
data.path = "text.txt"
data.seq_len = 32
train.steps = 2
train.global_batch = 4
checkpoint.every = 1
)";
constexpr char kStart[] = "runs/r/checkpoints/step-00000000";

// A run without steps writes a checkpoint, which is exported to the folder "hf". Every test works
// on a copy.
class Weights : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    made_ = std::make_unique<Playground>();
    ASSERT_TRUE(made_->yoke({"train", "run.toml", "train.steps=0"}).ending.ok());
    const SubprocessResult exported =
        made_->yoke({"checkpoint", "export", kStart, "-o", "hf", "--max-shard-size", "200KB"});
    ASSERT_TRUE(exported.ending.ok()) << exported.err;
  }
  static void TearDownTestSuite() { made_.reset(); }

  Weights() {
    fs::copy(made_->folder() / "hf", here_.folder() / "hf");
    fs::copy(made_->folder() / "runs", here_.folder() / "runs", fs::copy_options::recursive);
    here_.folder().write("from.toml", kRunFile);
  }

  std::string read(const std::string& name) const { return read_file(here_.folder() / name); }
  void write(const std::string& name, const std::string& text) const {
    here_.folder().write(name, text);
  }
  void change_config(const std::function<void(json&)>& change) const {
    json config = json::parse(read("hf/config.json"));
    change(config);
    write("hf/config.json", config.dump());
  }
  std::string shard(int n) const {
    for (const auto& entry : fs::directory_iterator(here_.folder() / "hf")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model-0000" + std::to_string(n))) return "hf/" + name;
    }
    return "";
  }
  void expect(const std::vector<std::string>& args,
              int exit_code,
              const std::vector<std::string>& fragments) const {
    const SubprocessResult result = here_.yoke(args);
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.ending.exit_code, exit_code) << result.err << result.out;
    for (const std::string& fragment : fragments) EXPECT_THAT(result.err, HasSubstr(fragment));
    EXPECT_FALSE(fs::exists(here_.folder() / "runs/t")) << "nothing may be started";
  }
  void expect_refused(const std::vector<std::string>& fragments) const {
    expect({"train", "from.toml"}, 2, fragments);
  }

  static std::unique_ptr<Playground> made_;
  Playground here_;
};
std::unique_ptr<Playground> Weights::made_;

TEST_F(Weights, OfAFolderAreTrainedOnAndComeBackInTheCheckpoint) {
  change_config([](json& config) { config["bos_token_id"] = 7; });
  write("hf/tokenizer.json", R"({"version": "1.0"})");
  write("hf/tokenizer_config.json", "{}");
  write("hf/notes.txt", "not a part of the model");
  const SubprocessResult trained = here_.yoke({"train", "from.toml", "data.format=text"});
  ASSERT_TRUE(trained.ending.ok()) << trained.err;
  const std::string last = "runs/t/checkpoints/step-00000002";
  EXPECT_EQ(read(last + "/tokenizer.json"), R"({"version": "1.0"})");
  EXPECT_EQ(read(last + "/tokenizer_config.json"), "{}");
  EXPECT_FALSE(fs::exists(here_.folder() / (last + "/notes.txt")));
  ASSERT_TRUE(here_.yoke({"checkpoint", "export", last, "-o", "out"}).ending.ok());
  EXPECT_EQ(read("out/tokenizer.json"), R"({"version": "1.0"})");
  EXPECT_THAT(trained.out, HasSubstr("initial parameters are from hf"));
  const json config = json::parse(read(last + "/config.json"));
  EXPECT_EQ(config["bos_token_id"], 7);
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_THAT(read("runs/t/config.resolved.toml"), HasSubstr("from = \"hf\""));
}

// Removes "model." from the names of a safetensors file, whose header keeps its length.
std::string without_prefix(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  std::string header =
      std::regex_replace(bytes.substr(sizeof length, length), std::regex("\"model\\."), "\"");
  header.resize(length, ' ');
  return bytes.substr(0, sizeof length) + header + bytes.substr(sizeof length + length);
}

// transformers saves the part of a model below its head with such names.
TEST_F(Weights, MayLackThePrefixOfTheirNames) {
  const std::vector<std::string> untrained{"train", "from.toml", "train.steps=0"};
  ASSERT_TRUE(here_.yoke(untrained).ending.ok());
  const std::string last = "runs/t/checkpoints/step-00000000";
  const std::string before = read(last + "/model.safetensors");
  fs::remove_all(here_.folder() / "runs/t");
  change_config([](json& config) { config["architectures"] = {"LlamaModel"}; });
  for (int n = 1; !shard(n).empty(); ++n) write(shard(n), without_prefix(read(shard(n))));
  const std::string index = "hf/model.safetensors.index.json";
  write(index, std::regex_replace(read(index), std::regex("\"model\\.([a-z])"), "\"$1"));
  const SubprocessResult trained = here_.yoke(untrained);
  ASSERT_TRUE(trained.ending.ok()) << trained.err;
  EXPECT_EQ(read(last + "/model.safetensors"), before);
  EXPECT_EQ(json::parse(read(last + "/config.json"))["architectures"],
            json::array({"LlamaForCausalLM"}));
}

TEST_F(Weights, WithATokenizerAreNotTrainedOnBytesByMistake) {
  write("hf/tokenizer.json", R"({"version": "1.0"})");
  expect_refused({"text.txt", "hf/tokenizer.json", "data.format"});
}

TEST_F(Weights, OfACheckpointStartANewRun) {
  const SubprocessResult trained =
      here_.yoke({"train", "from.toml", std::string("model.from=") + kStart, "train.steps=0"});
  ASSERT_TRUE(trained.ending.ok()) << trained.err;
  EXPECT_EQ(read("runs/t/checkpoints/step-00000000/model.safetensors"),
            read(std::string(kStart) + "/model.safetensors"));
}

TEST_F(Weights, ThatAreCutAreNamed) {
  const std::string bytes = read(shard(2));
  write(shard(2), bytes.substr(0, bytes.size() - 4));
  expect_refused({shard(2), "ends after the end of the file"});
}

TEST_F(Weights, WithAnImpossibleHeaderAreNamed) {
  std::string bytes = read(shard(1));
  std::memset(bytes.data(), 0x7f, 8);
  write(shard(1), bytes);
  expect_refused({shard(1), "the header's length is"});
}

TEST_F(Weights, WithADamagedHeaderAreNamed) {
  std::string bytes = read(shard(1));
  bytes[bytes.find("\"dtype\"") + 3] ^= 1;
  write(shard(1), bytes);
  expect_refused({shard(1), "unknown key"});
}

TEST_F(Weights, ThatOverlapAreNamed) {
  std::string bytes = read(shard(3));
  std::smatch offsets;
  const std::string after = bytes.substr(bytes.find("data_offsets") + 1);
  ASSERT_TRUE(std::regex_search(after, offsets, std::regex(R"(\[([0-9]{3,}),([0-9]{3,})\])")));
  const std::string moved = "[" + std::to_string(std::stoll(offsets[1]) - 4) + "," +
                            std::to_string(std::stoll(offsets[2]) - 4) + "]";
  ASSERT_EQ(moved.size(), static_cast<size_t>(offsets[0].length()));
  bytes.replace(bytes.find(offsets[0].str()), moved.size(), moved);
  write(shard(3), bytes);
  expect_refused({shard(3), "but the previous one ends at"});
}

TEST_F(Weights, WhoseIndexNamesAMissingFileAreNamed) {
  const std::string missing = shard(2);
  fs::remove(here_.folder() / missing);
  expect_refused({"hf/model.safetensors.index.json", missing.substr(3), "not in the folder"});
}

TEST_F(Weights, OfAVariantThatIsNotBuiltAreRefusedNamingEveryKey) {
  change_config([](json& config) {
    config["hidden_act"] = "gelu";
    config["attention_dropout"] = 0.1;
    config["rope_scaling"] = {{"rope_type", "longrope"}};
  });
  expect_refused({"hf/config.json", "hidden_act = \"gelu\"", "attention_dropout", "rope_scaling"});
}

TEST_F(Weights, ThatAreNotOfTheirConfigAreListed) {
  change_config([](json& config) { config["intermediate_size"] = 128; });
  expect_refused({"mlp.up_proj.weight' is [128, 64] in the model, [256, 64] in the files"});
}

TEST_F(Weights, AndDimensionsThatContradictThemAreBothNamed) {
  expect({"train", "from.toml", "model.layers=3", "model.rope_theta=5.0"},
         2,
         {"model.layers = 3, but hf/config.json has num_hidden_layers = 1",
          "model.rope_theta = 5, but hf/config.json has rope_theta = 10000"});
}

TEST_F(Weights, ThatAreNotOnThisMachineAreExplained) {
  expect({"train", "from.toml", "model.from=meta-llama/Llama-3.2-1B"},
         2,
         {"no meta-llama/Llama-3.2-1B/config.json", "hf download"});
}

TEST_F(Weights, OfNothingButAPickleAreRefused) {
  fs::remove(here_.folder() / "hf/model.safetensors.index.json");
  write("hf/pytorch_model.bin", "x");
  expect_refused({"pytorch_model.bin is a pickle"});
}

// ---- yoke checkpoint ----

TEST_F(Weights, AreListedWithTheirState) {
  fs::copy(here_.folder() / kStart, here_.folder() / "runs/r/checkpoints/step-00000005");
  const SubprocessResult table = here_.yoke({"checkpoint", "ls"});
  EXPECT_TRUE(table.ending.ok()) << table.err;
  EXPECT_THAT(table.out, HasSubstr(std::string(kStart) + "  0 of 0 "));
  fs::remove(here_.folder() / "runs/r/checkpoints/step-00000005/optimizer.safetensors");
  const SubprocessResult listed = here_.yoke({"checkpoint", "ls", "runs/r", "--json"});
  const json rows = json::parse(listed.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["complete"], true);
  EXPECT_EQ(rows[0]["step"], 0);
  EXPECT_EQ(rows[1]["complete"], false);
  EXPECT_THAT(rows[1]["fault"], HasSubstr("optimizer.safetensors: the file is missing"));
}

TEST_F(Weights, AreVerifiedToTheLastByte) {
  const SubprocessResult good = here_.yoke({"checkpoint", "verify", kStart});
  EXPECT_TRUE(good.ending.ok()) << good.err;
  EXPECT_THAT(good.out, HasSubstr("all checksums match"));
  const std::string file = std::string(kStart) + "/model.safetensors";
  std::string bytes = read(file);
  bytes[bytes.size() - 5] ^= 1;
  write(file, bytes);
  expect({"checkpoint", "verify", kStart}, 1, {file, "tensor '", "elements [0, "});
  expect({"checkpoint", "export", kStart, "-o", "out"}, 1, {file});
  EXPECT_FALSE(fs::exists(here_.folder() / "out"));
}

TEST_F(Weights, CommandsRefuseWhatTheyCannotDo) {
  expect({"checkpoint", "verify", "hf"}, 2, {"hf is not a checkpoint"});
  expect({"checkpoint", "ls", "nowhere"}, 2, {"nowhere is not a folder"});
  expect({"checkpoint", "export", kStart}, 2, {"--output is required"});
  expect({"checkpoint", "export", kStart, "-o", "hf"}, 2, {"hf exists already"});
  expect({"checkpoint", "export", kStart, "-o", "x", "--dtype", "fp8"}, 2, {"--dtype fp8", "bf16"});
  expect({"checkpoint", "export", kStart, "-o", "x", "--format", "gguf"}, 2, {"allowed: hf"});
  expect({"checkpoint", "export", kStart, "-o", "x", "--max-shard-size", "5 apples"},
         2,
         {"--max-shard-size 5 apples", "5GB"});
  expect({"checkpoint", "import", "hf"}, 2, {"unknown command 'import'", "verify"});
}

TEST_F(Weights, AreContinuedByGenerate) {
  const SubprocessResult text = here_.yoke(
      {"generate", "hf", "--tokenizer", "bytes", "--prompt", "the cat", "--tokens", "3"});
  EXPECT_TRUE(text.ending.ok()) << text.err;
  EXPECT_THAT(text.out, HasSubstr("the cat"));
  expect({"generate", "hf", "--prompt", "a"}, 2, {"1024 token ids", "--tokenizer bytes"});
  write("hf/tokenizer.json", "{}");
  expect({"generate", "hf", "--prompt", "a"}, 2, {"hf/tokenizer.json", "model"});
}

// ---- Token files ----

std::string ids(const std::vector<uint16_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 2};
}

class Tokens : public Weights {
 protected:
  Tokens() {
    std::vector<uint16_t> many(2000);
    for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<uint16_t>(i * i % 251);
    write("raw.bin", ids(many));
    many[1500] = 40000;
    write("beyond.bin", ids(many));
  }
  void expect_refused(const std::vector<std::string>& keys,
                      const std::vector<std::string>& fragments) const {
    std::vector<std::string> args{"train", "from.toml"};
    args.insert(args.end(), keys.begin(), keys.end());
    expect(args, 2, fragments);
  }
};

TEST_F(Tokens, OfNanoGptAreTrainedOnWhenNamed) {
  expect_refused({"data.path=raw.bin"},
                 {"raw.bin", "no known header", "data.format = \"nanogpt\""});
  const SubprocessResult run =
      here_.yoke({"train", "from.toml", "data.path=raw.bin", "data.format=nanogpt"});
  EXPECT_TRUE(run.ending.ok()) << run.err;
}

TEST_F(Tokens, BeyondTheVocabularyAreNamedWithFilePlaceAndId) {
  expect_refused({"data.path=beyond.bin", "data.format=nanogpt"},
                 {"beyond.bin", "token 1500 (byte 3000) is 40000", "model.vocab = 1024"});
}

TEST_F(Tokens, OfADamagedFileAreRefused) {
  write("odd.bin", "abc");
  expect_refused({"data.path=odd.bin", "data.format=nanogpt"}, {"odd.bin", "3 bytes", "even"});
  std::string header("\x88\xd8\x34\x01\1\0\0\0\2\0\0\0", 12);
  header.resize(1024);
  write("llmc.bin", header + "abcdef");
  expect_refused({"data.path=llmc.bin"}, {"llmc.bin", "promises 2 ids", "which are 3"});
}

TEST_F(Tokens, AreInspected) {
  const SubprocessResult raw = here_.yoke(
      {"data", "inspect", "raw.bin", "--format", "nanogpt", "--seq-len", "64", "--json"});
  ASSERT_TRUE(raw.ending.ok()) << raw.err;
  const json found = json::parse(raw.out);
  EXPECT_EQ(found["format"], "nanogpt");
  EXPECT_EQ(found["tokens"], 2000);
  EXPECT_TRUE(found["vocabulary"].is_null());
  EXPECT_EQ(found["min_id"], 0);
  EXPECT_EQ(found["max_id"], 249);
  EXPECT_EQ(found["training_windows"], 29);
  EXPECT_EQ(found["held_out_windows"], 2);
  EXPECT_EQ(found["first_ids"][3], 9);
  const SubprocessResult text = here_.yoke({"data", "inspect", "text.txt"});
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("the cat 0 sat"), HasSubstr("vocabulary"), HasSubstr("256")));
}

TEST_F(Tokens, ThatAreDamagedAreInspectedWithThePlace) {
  expect({"data", "inspect", "raw.bin"}, 2, {"raw.bin", "no known header", "--format"});
  expect({"data", "inspect", "beyond.bin", "--format", "nanogpt", "--vocab", "300"},
         1,
         {"token 1500 (byte 3000) is 40000"});
  expect({"data", "inspect", "gone.bin"}, 2, {"gone.bin", "does not exist"});
  expect({"data", "inspect", "raw.bin", "--seq-len", "0"}, 2, {"--seq-len"});
}

}  // namespace
}  // namespace yoke::testing
