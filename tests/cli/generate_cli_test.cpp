// Generates text with the tokenizer of a model, with the real program.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/cli/playground.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kCheckpoint[] = "runs/r/checkpoints/step-00000002";

class Generate : public ::testing::Test {
 protected:
  Generate() {
    here_.folder().write("model/tokenizer.json", tiny_tokenizer().dump());
    here_.folder().write("model/tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}");
  }
  // Trains a model with this vocabulary for two steps on texts that the tokenizer encodes.
  void train(int vocab) const {
    run({"data", "prepare", "--tokenizer", "model", "-o", "ids.bin", "text.txt"});
    run({"train",
         "run.toml",
         "train.steps=2",
         "model.vocab=" + std::to_string(vocab),
         "data.path=ids.bin"});
  }
  // Runs a command that must succeed, and returns its output.
  std::string run(const std::vector<std::string>& args) const {
    const SubprocessResult result = here_.yoke(args);
    EXPECT_TRUE(result.ending.ok()) << result.err;
    return result.out;
  }
  std::string generate(std::vector<std::string> args) const {
    args.insert(args.begin(),
                {"generate", kCheckpoint, "--tokenizer", "model", "--prompt", "hell"});
    return run(args);
  }
  void expect_refused(std::vector<std::string> args, const std::string& text) const {
    args.insert(args.begin(), {"generate", kCheckpoint});
    const SubprocessResult result = here_.yoke(args);
    EXPECT_EQ(result.ending.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  Playground here_;
};

TEST_F(Generate, ContinuesAPromptWithTheTokenizer) {
  train(300);  // the ids from 261 on are no tokens, and are never chosen
  const std::string text = generate({"--tokens", "40", "--temperature", "50"});
  EXPECT_THAT(text, StartsWith("hell"));
  EXPECT_EQ(text, generate({"--tokens", "40", "--temperature", "50"}));
  EXPECT_NE(text, generate({"--tokens", "40", "--temperature", "50", "--seed", "2"}));
  const std::string likeliest = generate({"--tokens", "9", "--temperature", "0"});
  EXPECT_EQ(likeliest, generate({"--tokens", "9", "--top-k", "1"}));
  EXPECT_EQ(likeliest, generate({"--tokens", "9", "--top-p", "0"}));

  std::vector<int> all(261);
  std::iota(all.begin(), all.end(), 0);
  here_.folder().write("model/generation_config.json",
                       nlohmann::json{{"eos_token_id", all}}.dump());
  EXPECT_EQ(generate({}), "hell\n") << "every token ends the text";

  here_.folder().write(std::string(kCheckpoint) + "/tokenizer.json", tiny_tokenizer().dump());
  EXPECT_THAT(run({"generate", kCheckpoint, "--prompt", "hell", "--tokens", "2"}),
              StartsWith("hell"));
}

// An answer continues the text of the whole conversation, which the template makes of its turns.
TEST_F(Generate, AnswersTheTurnsOfAConversation) {
  train(261);
  // Returns what follows the prompt, with the end of the line.
  const auto plain = [&](const std::string& prompt) {
    const std::string text = run({"generate",
                                  kCheckpoint,
                                  "--tokenizer",
                                  "model",
                                  "--prompt",
                                  prompt,
                                  "--tokens",
                                  "6",
                                  "--temperature",
                                  "0"});
    EXPECT_THAT(text, StartsWith(prompt));
    return text.substr(prompt.size());
  };
  const std::string chat = "generate " + std::string(kCheckpoint) +
                           " --tokenizer model --chat --template zephyr --tokens 6 --temperature 0";
  const auto answers = [&](const std::string& command) {
    const SubprocessResult r = run_subprocess(
        {"/bin/sh", "-c", "cd " + here_.folder().path().string() + " && " + command});
    EXPECT_TRUE(r.ending.ok()) << r.err;
    return r.out;
  };
  const std::string first = "<|user|>\nhell<|end|>\n<|assistant|>\n";
  const std::string one = plain(first);
  EXPECT_EQ(answers(Playground::program() + " " + chat + " --prompt hell"), one);
  const std::string second =
      first + one.substr(0, one.size() - 1) + "<|end|>\n<|user|>\nthe<|end|>\n<|assistant|>\n";
  EXPECT_EQ(answers("printf 'hell\\n\\nthe\\n' | " + Playground::program() + " " + chat),
            one + plain(second));
  EXPECT_EQ(answers(Playground::program() + " " + chat + " --prompt hell --system old"),
            plain("<|system|>\nold<|end|>\n" + first));
}

TEST_F(Generate, RefusesOptionsOfChatsThatDoNotFit) {
  train(261);
  const std::string both = "--chat and --template NAME belong together";
  expect_refused({"--chat"}, both);
  expect_refused({"--template", "zephyr"}, both);
  expect_refused({"--system", "a"}, "--system needs --chat");
  expect_refused(
      {"--tokenizer", "model", "--chat", "--template", "zephir", "--prompt", "a"},
      "there is no chat template 'zephir'; allowed: chatml, llama3, mistral, zephyr; did "
      "you mean 'zephyr'?");
  expect_refused({"--tokenizer", "model", "--chat", "--template", "chatml", "--prompt", "a"},
                 "<|im_start|>");
  here_.folder().write("model/tokenizer_config.json",
                       R"({"bos_token": "<|begin|>", "eos_token": "<|end|>"})");
  expect_refused(
      {"--tokenizer", "model", "--chat", "--template", "mistral", "--system", "s", "--prompt", "a"},
      "system");
}

TEST_F(Generate, RefusesATokenizerThatDoesNotFit) {
  train(261);
  expect_refused(
      {"--prompt", "a"},
      "the model has 261 token ids, but " + std::string(kCheckpoint) + " holds no tokenizer");
  expect_refused({"--prompt", "\xFF", "--tokenizer", "model"}, "its byte 0 is 0xff");
  expect_refused({"--top-p", "1.5"}, "--top-p 1.5; allowed: a number from 0 to 1");
  for (const char* option : {"--temperature", "--top-p", "--top-k", "--tokens", "--seed"})
    expect_refused({option, "nan"}, std::string(option) + " nan; allowed: a number from");
  expect_refused({"--tokens", "1.5"}, "--tokens 1.5; allowed: a whole number");
  nlohmann::json removes = tiny_tokenizer();
  removes["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Removed"}},
        removes["pre_tokenizer"]}}};
  here_.folder().write("model/tokenizer.json", removes.dump());
  expect_refused({"--prompt", " ", "--tokenizer", "model"},
                 "the tokenizer model/tokenizer.json turns the prompt into no tokens");
  nlohmann::json larger = tiny_tokenizer();
  larger["added_tokens"].push_back({{"id", 261}, {"content", "<|more|>"}, {"special", true}});
  here_.folder().write("model/tokenizer.json", larger.dump());
  expect_refused({"--prompt", "a", "--tokenizer", "model"},
                 "has ids up to 261, but the model has 261 token ids");
}

}  // namespace
}  // namespace yoke::testing
