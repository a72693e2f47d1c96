#include "core/text/tokenizer.hpp"

#include <gmock/gmock.h>

#include "tests/unit/text/opened_files.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::tiny_tokenizer;
using testing::TokenizerFolder;

TEST(Tokenizer, ReadsTheEndsFromTheFilesBesideIt) {
  TokenizerFolder folder;
  EXPECT_EQ(folder.open()->facts().eos, std::nullopt);
  EXPECT_THAT(folder.open()->facts().stops, IsEmpty());

  folder.write("config", {{"bos_token_id", 1}, {"eos_token_id", {2, 3}}});
  EXPECT_EQ(folder.open()->facts().bos, 1);
  EXPECT_EQ(folder.open()->facts().eos, 2);
  EXPECT_THAT(folder.open()->facts().stops, ElementsAre(2, 3));

  folder.write("tokenizer_config",
               {{"bos_token", {{"content", "<|begin|>"}}}, {"eos_token", "<|end|>"}});
  folder.write("generation_config", {{"eos_token_id", 4}});
  EXPECT_EQ(folder.open()->facts().bos, 260);
  EXPECT_EQ(folder.open()->facts().eos, 259);
  EXPECT_THAT(folder.open()->facts().stops, ElementsAre(259, 2, 3, 4));
}

TEST(Tokenizer, RefusesEndsThatTheVocabularyLacks) {
  TokenizerFolder folder;
  folder.write("tokenizer_config", {{"eos_token", "</s>"}});
  EXPECT_THAT(folder.error(), HasSubstr("eos_token: the vocabulary lacks the token \"</s>\""));
  folder.write("tokenizer_config", nlohmann::json::object());
  folder.write("config", {{"eos_token_id", 261}});
  EXPECT_THAT(folder.error(), HasSubstr("the id 261 is not below the vocabulary of 261"));
}

TEST(Tokenizer, OfBytesTakesAnyText) {
  const auto bytes = Tokenizer::bytes();
  EXPECT_THAT(bytes->encode("a\xFF"), ElementsAre('a', 255));
  EXPECT_EQ(bytes->decode({'a', 0xC3, 0xA9, 0xFF}), "a\u00e9\uFFFD");
  EXPECT_TRUE(bytes->contains(255));
  EXPECT_FALSE(bytes->contains(256));
  EXPECT_EQ(bytes->facts().vocab_size, 256);
}

TEST(Tokenizer, NamesAMissingFile) {
  const testing::TempFolder empty;
  try {
    Tokenizer::open(empty.path().string());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_NOT_FOUND);
    EXPECT_THAT(e.what(), HasSubstr("holds neither tokenizer.json nor tokenizer.model"));
  }
}

TEST(Tokenizer, TheHashIsThatOfTheContent) {
  const TokenizerFolder one, same;
  nlohmann::json json = tiny_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  const TokenizerFolder other(json);
  EXPECT_EQ(one.open()->facts().hash, same.open()->facts().hash);
  EXPECT_NE(one.open()->facts().hash, other.open()->facts().hash);
  EXPECT_EQ(one.open()->facts().hash.size(), 16u);
}

TEST(Tokenizer, ReadsEachFileOnce) {
  TokenizerFolder folder;
  folder.write("tokenizer_config", {{"eos_token", "<|end|>"}});
  EXPECT_THAT(testing::opened_in(folder.path(), [&] { folder.open(); }),
              ElementsAre("tokenizer.json", "tokenizer_config.json"));
}

}  // namespace
}  // namespace yoke
