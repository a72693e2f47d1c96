#include "core/text/tokenizer_json.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::tiny_tokenizer;
using testing::TokenizerFolder;

TEST(TokenizerJson, EncodesAndDecodes) {
  const TokenizerFolder folder;
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->facts().vocab_size, 261);
  EXPECT_THAT(tokenizer->encode("hell they<|end|>"), ElementsAre(257, 'l', 258, 256, 'y', 259));
  EXPECT_EQ(tokenizer->decode({257, 'l', 258, 256, 'y', 259}), "hell they");
  EXPECT_EQ(tokenizer->decode({257, 'l', 258, 256, 'y', 259}, true), "hell they<|end|>");
  EXPECT_EQ(tokenizer->id_of("<|begin|>"), 260);
  EXPECT_EQ(tokenizer->id_of("hel"), 257);
  EXPECT_EQ(tokenizer->id_of("lo"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(259));
  EXPECT_FALSE(tokenizer->is_special(258));
}

TEST(TokenizerJson, CountsTheTokensBeforeAPlace) {
  json changing = tiny_tokenizer(), normalized = tiny_tokenizer();
  changing["pre_tokenizer"]["add_prefix_space"] = true;
  changing["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "y"}}}, {"content", "he"}};
  normalized["added_tokens"][0]["normalized"] = true;
  json metaspace = tiny_tokenizer();
  metaspace["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"split", false}};
  metaspace["decoder"] = {{"type", "Metaspace"}, {"replacement", "_"}};
  json stripping = tiny_tokenizer();
  stripping["added_tokens"][0]["rstrip"] = true;
  stripping["added_tokens"][1]["lstrip"] = true;
  std::mt19937 random(11);
  for (const json& file : {tiny_tokenizer(), changing, normalized, metaspace, stripping}) {
    const auto tokenizer = TokenizerFolder(file).open();
    const auto encoder = tokenizer->encoder();
    for (int round = 0; round < 1000; ++round) {
      std::string text;
      const std::array<const char*, 8> pieces = {
          "h", "e", "l", " ", "t", "y", "<|end|>", "<|begin|>"};
      for (size_t i = random() % 20; i > 0; --i) text += pieces[random() % pieces.size()];
      std::vector<size_t> places;
      for (size_t at = 0; at <= text.size(); ++at) {
        if (random() % 2 == 0) places.push_back(at);
      }
      std::vector<int32_t> ids = {-1};
      const std::vector<size_t> found = encoder->encode(text, places, ids);
      const std::vector<int32_t> whole = tokenizer->encode(text);
      ASSERT_EQ(std::vector(ids.begin() + 1, ids.end()), whole) << text;
      std::vector<size_t> expected;
      for (const size_t place : places) {
        const std::vector<int32_t> cut = tokenizer->encode(text.substr(0, place));
        expected.push_back(static_cast<size_t>(
            std::mismatch(cut.begin(), cut.end(), whole.begin(), whole.end()).first - cut.begin()));
      }
      ASSERT_EQ(found, expected) << text;
    }
  }
}

TEST(TokenizerJson, RefusesTextThatIsNotUtf8AndIdsThatAreNoTokens) {
  const TokenizerFolder folder;
  const auto tokenizer = folder.open();
  const auto error = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error([&] { tokenizer->encode("hell\xFF"); }), HasSubstr("its byte 4 is 0xff"));
  EXPECT_THAT(error([&] { tokenizer->decode({261}); }), HasSubstr("no token with the id 261"));
  EXPECT_THAT(error([&] { tokenizer->decode({-1}); }), HasSubstr("no token with the id -1"));
}

TEST(TokenizerJson, ReadsThePrefixOfThePostProcessor) {
  json file = tiny_tokenizer();
  const json template_processing = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|begin|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<|begin|>", {{"ids", {260}}}}, {"<|end|>", {{"ids", {259}}}}}}};
  file["post_processor"] = {{"type", "Sequence"},
                            {"processors", {{{"type", "ByteLevel"}}, template_processing}}};
  EXPECT_THAT(TokenizerFolder(file).open()->facts().prefix, ElementsAre(260));
  json& ids = file["post_processor"]["processors"][1]["special_tokens"]["<|begin|>"]["ids"];
  ids = {260, 261};
  EXPECT_THAT(TokenizerFolder(file).error(),
              HasSubstr("special_tokens.<|begin|>.ids[1]: no token has this id"));
  ids = {"260"};
  EXPECT_THAT(TokenizerFolder(file).error(), HasSubstr("ids[0]: \"260\" is no id of a token"));
}

// Returns the message after one part of the file was replaced.
std::string error_with(const char* part, const json& value) {
  json file = tiny_tokenizer();
  file[part] = value;
  return TokenizerFolder(file).error();
}

TEST(TokenizerJson, RefusesByNameWhatIsNotImplemented) {
  EXPECT_THAT(error_with("normalizer", {{"type", "BertNormalizer"}}),
              HasSubstr("tokenizer.json: normalizer: \"BertNormalizer\" is not implemented"));
  EXPECT_THAT(
      error_with("normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}),
      HasSubstr("normalizer.normalizers[0]: \"Lowercase\" is not implemented"));
  EXPECT_THAT(error_with("pre_tokenizer", {{"type", "Whitespace"}}),
              HasSubstr("pre_tokenizer: \"Whitespace\" is not implemented"));
  EXPECT_THAT(error_with("pre_tokenizer",
                         {{"type", "Sequence"},
                          {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}),
              HasSubstr("pretokenizers[1]: a step after ByteLevel is not implemented"));
  EXPECT_THAT(
      error_with("pre_tokenizer",
                 {{"type", "Split"}, {"pattern", {{"Regex", "\\b+"}}}, {"behavior", "Isolated"}}),
      HasSubstr("pre_tokenizer: the pattern \\b+ contains \\b"));
  EXPECT_THAT(
      error_with("pre_tokenizer",
                 {{"type", "Split"}, {"pattern", {{"String", "e"}}}, {"behavior", "Doubled"}}),
      HasSubstr("the behavior \"Doubled\" is not implemented"));
  EXPECT_THAT(error_with("post_processor", {{"type", "BertProcessing"}}),
              HasSubstr("post_processor: \"BertProcessing\" is not implemented"));
  EXPECT_THAT(error_with("decoder", {{"type", "WordPiece"}}),
              HasSubstr("decoder: \"WordPiece\" is not implemented"));
  EXPECT_THAT(error_with("decoder", nullptr), HasSubstr("without a decoder"));
  EXPECT_THAT(error_with("decoder", {{"type", "Metaspace"}, {"replacement", "_"}}),
              HasSubstr("ByteLevel must be in both"));
  EXPECT_THAT(error_with("added_tokens",
                         {{{"id", 1}, {"content", "x"}, {"special", true}, {"single_word", true}}}),
              HasSubstr("single_word: true is not implemented"));
  EXPECT_THAT(error_with("model", {{"type", "Unigram"}}),
              HasSubstr("model: \"Unigram\" is not implemented; implemented: BPE"));
}

// An empty pattern would be found again and again at one place.
TEST(TokenizerJson, RefusesAnAddedTokenThatTheNormalizerRemoves) {
  json file = tiny_tokenizer();
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "~"}}}, {"content", ""}};
  file["added_tokens"].push_back({{"id", 261}, {"content", "~~"}, {"normalized", true}});
  EXPECT_THAT(TokenizerFolder(file).error(),
              HasSubstr("added_tokens[2]: the normalizer leaves nothing of its content"));
}

TEST(TokenizerJson, RefusesWrongIds) {
  const auto error = [](const json& vocab_id, const json& added_id) {
    json file = tiny_tokenizer();
    file["model"]["vocab"]["new"] = vocab_id;
    file["added_tokens"].push_back({{"id", added_id}, {"content", "<new>"}});
    return TokenizerFolder(file).error();
  };
  const std::string allowed = " is no id of a token; allowed: a whole number from 0 to 16777215";
  for (const json& wrong : {json(1 << 24), json(-1), json(1.5), json("7"), json(UINT64_MAX)}) {
    EXPECT_THAT(error(wrong, 262), HasSubstr("model.vocab.new: " + wrong.dump() + allowed));
    EXPECT_THAT(error(261, wrong), HasSubstr("added_tokens[2].id: " + wrong.dump() + allowed));
  }
  EXPECT_THAT(error(257, 262),
              HasSubstr("model.vocab: the id 257 belongs to two tokens: \"hel\" and \"new\""));
  EXPECT_THAT(error(261, 261),
              HasSubstr("added_tokens[2]: the id 261 belongs to two tokens: \"<new>\" and"));
  EXPECT_EQ(error(261, 262), "nothing was thrown");
}

TEST(TokenizerJson, ADamagedFileIsReported) {
  testing::TempFolder folder;
  folder.write("tokenizer.json", "{\"model\":");
  try {
    Tokenizer::open(folder.path().string());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS);
    EXPECT_THAT(e.what(), HasSubstr("tokenizer.json is not JSON"));
  }
}

}  // namespace
}  // namespace yoke
