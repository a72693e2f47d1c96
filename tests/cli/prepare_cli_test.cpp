// Prepares token ids from texts with the real program, and trains on them.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "core/data/token_info.hpp"
#include "tests/cli/metrics_rows.hpp"
#include "tests/cli/playground.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke::testing {
namespace {

using ::testing::HasSubstr;

class PrepareCli : public ::testing::Test {
 protected:
  PrepareCli() {
    here_.folder().write("model/tokenizer.json", tiny_tokenizer().dump());
    here_.folder().write("model/tokenizer_config.json", "{\"eos_token\": \"<|end|>\"}");
  }
  SubprocessResult prepare(std::vector<std::string> args) const {
    args.insert(args.begin(), {"data", "prepare", "--tokenizer", "model"});
    return here_.yoke(args);
  }
  void expect_refused(const std::vector<std::string>& args,
                      int code,
                      const std::string& text) const {
    const SubprocessResult result = prepare(args);
    EXPECT_EQ(result.ending.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  Playground here_;
  int outputs_ = 0;
};

TEST_F(PrepareCli, ARunTrainsOnTheOutput) {
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += "{\"body\": \"hell, they said " + std::to_string(i * i) + "\"}\n";
  here_.folder().write("docs/a.jsonl", lines);
  const SubprocessResult result = prepare({"docs", "-o", "ids.bin", "--field", "body"});
  ASSERT_TRUE(result.ending.ok()) << result.err;
  EXPECT_THAT(result.out, HasSubstr("of 300 documents, vocabulary 261"));
  EXPECT_THAT(result.out, HasSubstr("data.path=ids.bin"));
  EXPECT_EQ(read_token_info(here_.folder() / "ids.bin")->document_end, 259);
  const SubprocessResult run =
      here_.yoke({"train", "run.toml", "data.path=ids.bin", "model.vocab=261"});
  ASSERT_TRUE(run.ending.ok()) << run.err;
  EXPECT_EQ(logged_losses(here_.folder() / "runs/r").size(), 4u);
}

TEST_F(PrepareCli, EndsOfDocumentsFollowTheFlags) {
  here_.folder().write("a.txt", "one\n---\ntwo");
  const auto tokens = [&](std::vector<std::string> args) {
    const std::string out = "ids" + std::to_string(++outputs_) + ".bin";
    args.insert(args.end(), {"a.txt", "-o", out, "--split-on", "\\n---\\n"});
    const SubprocessResult result = prepare(args);
    EXPECT_TRUE(result.ending.ok()) << result.err;
    return read_token_info(here_.folder() / out).value_or(TokenInfo()).tokens;
  };
  EXPECT_EQ(tokens({}), 8);
  EXPECT_EQ(tokens({"--append-eos"}), 8);
  EXPECT_EQ(tokens({"--no-append-eos"}), 6);
  expect_refused({"a.txt", "-o", "x.bin", "--bos"},
                 2,
                 "--bos: the tokenizer model/tokenizer.json has no such token");
}

// A tokenizer may name no end of text, or one that a user does not want.
TEST_F(PrepareCli, AnyAddedTokenMayEndDocuments) {
  here_.folder().write("a.txt", "one\n---\ntwo");
  const auto end_of = [&](const std::string& out) {
    const SubprocessResult result =
        prepare({"a.txt", "-o", out, "--split-on", "\\n---\\n", "--end-token", "<|begin|>"});
    EXPECT_TRUE(result.ending.ok()) << result.err;
    const TokenInfo info = read_token_info(here_.folder() / out).value_or(TokenInfo());
    EXPECT_EQ(info.tokens, 8);
    return info.document_end;
  };
  EXPECT_EQ(end_of("other.bin"), 260);
  here_.folder().write("model/tokenizer_config.json", "{}");
  EXPECT_EQ(end_of("absent.bin"), 260);

  const auto refused = [&](const std::string& token, const std::string& text) {
    expect_refused({"a.txt", "-o", "x.bin", "--end-token", token}, 2, text);
  };
  refused("<|edn|>",
          "--end-token \"<|edn|>\" is not among the added tokens of model/tokenizer.json; did you "
          "mean '<|end|>'?; allowed: <|end|>, <|begin|>");
  refused("he", "--end-token \"he\" is not among the added tokens");  // texts contain it
  refused("", "--end-token \"\" is not among the added tokens");
  expect_refused(
      {"a.txt", "-o", "x.bin", "--end-token", "<|end|>", "--no-append-eos"}, 2, "--end-token");
}

TEST_F(PrepareCli, ReportsBadInputWithTheRightCode) {
  here_.folder().write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"a}\n");
  expect_refused({"a.jsonl", "-o", "x.bin"}, 1, "a.jsonl:2: the line is not JSON");
  expect_refused({"b.jsonl", "-o", "x.bin"}, 2, "input = \"b.jsonl\" does not exist");
  expect_refused({"a.jsonl"}, 2, "--output is required");
  expect_refused({"a.jsonl", "-o", "x.bin", "--chat", "--template", "zephir", "--no-append-eos"},
                 2,
                 "did you mean 'zephyr'?");
  here_.folder().write("model/tokenizer.json",
                       "{\"model\": {\"type\": \"Unigram\"}, \"pre_tokenizer\": null}");
  expect_refused({"a.jsonl", "-o", "x.bin"}, 2, "\"Unigram\" is not implemented");
}

// A program without libyoke_parquet.so reads everything but Parquet files.
TEST_F(PrepareCli, OnlyParquetFilesNeedTheLibraryForThem) {
  here_.folder().write("alone/bin/none", "");
  std::filesystem::copy(Playground::program(), here_.folder() / "alone/bin/yoke");
  here_.folder().write("a.txt", "one");
  here_.folder().write("a.parquet", "PAR1");
  const auto alone = [&](const std::string& input) {
    return run_subprocess({"/usr/bin/env",
                           "-C",
                           here_.folder().path().string(),
                           "alone/bin/yoke",
                           "data",
                           "prepare",
                           "--tokenizer",
                           "model",
                           input,
                           "-o",
                           "x.bin"});
  };
  const SubprocessResult refused = alone("a.parquet");
  EXPECT_EQ(refused.ending.exit_code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("input = \"a.parquet\" is a Parquet file, but this Yoke was built without "
                        "Parquet: libyoke_parquet.so is missing; run scripts/setup --parquet and "
                        "build Yoke again, or convert the file to .jsonl"));
  EXPECT_TRUE(alone("a.txt").ending.ok());
}

// Starts a preparation of a.txt and kills it as soon as it has saved its state, which it does every
// two seconds. It is stopped for most of this time, so that even a fast machine does not complete
// it before. Returns false if it was completed.
bool kill_after_save(const TempFolder& folder) {
  const std::string state = folder / "killed.bin.partial/progress.json";
  std::filesystem::remove(folder / "old.json");
  if (std::filesystem::exists(state)) std::filesystem::create_hard_link(state, folder / "old.json");
  const pid_t child = ::fork();
  if (child == 0) {
    std::filesystem::current_path(folder.path());
    std::vector<const char*> words = {"yoke", "data", "prepare", "--tokenizer", "model"};
    words.insert(words.end(), {"a.txt", "--split-on", "blank-lines", "--threads", "1"});
    words.insert(words.end(), {"-o", "killed.bin", nullptr});
    ::execv(Playground::program().c_str(), const_cast<char**>(words.data()));
    ::_exit(127);
  }
  bool ended = false, saved = false;
  while (!ended && !saved) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ::kill(child, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    saved =
        std::filesystem::exists(state) && !std::filesystem::equivalent(state, folder / "old.json");
    ::kill(child, saved ? SIGKILL : SIGCONT);
    ended = ::waitpid(child, nullptr, saved ? 0 : WNOHANG) != 0 && !saved;
  }
  return saved;
}

TEST_F(PrepareCli, AKilledPreparationResumesWithTheSameBytes) {
  std::string text;
  for (int i = 0; text.size() < 24'000'000; ++i) text += "they " + std::to_string(i) + " hel\n\n";
  here_.folder().write("a.txt", text);
  const auto arguments = [&](const char* out) -> std::vector<std::string> {
    return {"a.txt", "--split-on", "blank-lines", "--threads", "2", "-o", out};
  };
  ASSERT_TRUE(prepare(arguments("whole.bin")).ending.ok());
  for (int kills = 0; kills < 2; ++kills)
    ASSERT_TRUE(kill_after_save(here_.folder())) << "it ended before it saved its state";
  const SubprocessResult result = prepare(arguments("killed.bin"));
  ASSERT_TRUE(result.ending.ok()) << result.err;
  EXPECT_THAT(result.err, HasSubstr("yoke: resumed after "));
  EXPECT_EQ(read_file(here_.folder() / "killed.bin"), read_file(here_.folder() / "whole.bin"));
  EXPECT_EQ(read_file(here_.folder() / "killed.json"), read_file(here_.folder() / "whole.json"));
}

}  // namespace
}  // namespace yoke::testing
