#include "core/text/bpe.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <random>

#include "core/base/utf8.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Made {
  json model;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Returns a model over the letters a to d with `count` random merges of tokens that exist.
Made random_model(std::mt19937& random, size_t count) {
  Made made;
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  json merges = json::array();
  for (size_t i = 0; i < count; ++i) {
    const std::string left = tokens[random() % tokens.size()],
                      right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    if (std::find(made.merges.begin(), made.merges.end(), std::pair(left, right)) !=
        made.merges.end())
      continue;
    made.merges.emplace_back(left, right);
    merges.push_back({left, right});
    if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
      tokens.push_back(left + right);
  }
  json vocab;
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  made.model = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  return made;
}

// Merges the first pair of the list, everywhere from the left, until no pair is left.
std::vector<std::string> plain_merges(const Made& made, const std::string& word) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  for (bool merged = true; merged;) {
    merged = false;
    for (const auto& [left, right] : made.merges) {
      for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
        if (parts[i] != left || parts[i + 1] != right) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  return parts;
}

TEST(Bpe, MergesLikeThePlainAlgorithm) {
  std::mt19937 random(3);
  for (int model = 0; model < 60; ++model) {
    const Made made = random_model(random, 1 + random() % 40);
    const Bpe bpe(JsonReader(made.model, "model"), false);
    BpeWorkspace work;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      // Words above 64 bytes are not remembered.
      for (size_t size = 1 + random() % 90; word.size() < size;) word += "abcd"[random() % 4];
      std::vector<int32_t> expected, ids, again;
      for (const std::string& part : plain_merges(made, word)) expected.push_back(bpe.id_of(part));
      bpe.encode(word, work, ids);
      ASSERT_EQ(ids, expected) << made.model << word;
      bpe.encode(word, work, again);
      ASSERT_EQ(again, expected) << "the second time: " << made.model << word;
    }
  }
}

TEST(Bpe, EncodesALongWord) {
  const json model = testing::tiny_tokenizer()["model"];
  const Bpe bpe(JsonReader(model, "model"), true);
  BpeWorkspace work;
  std::vector<int32_t> ids;
  std::string word;
  for (int i = 0; i < 300000; ++i) word += "hel";
  bpe.encode(word, work, ids);
  EXPECT_EQ(ids, std::vector<int32_t>(300000, 257));
}

json small_model() {
  return {{"type", "BPE"},
          {"vocab",
           {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"ab", 3}, {"abc", 4}, {"<0xC3>", 5}, {"<0xA9>", 6}}},
          {"merges", {"a b"}},
          {"unk_token", "<unk>"}};
}

std::vector<int32_t> encode(const json& model, const std::string& word) {
  std::vector<int32_t> ids;
  BpeWorkspace work;
  Bpe(JsonReader(model, "model"), false).encode(word, work, ids);
  return ids;
}

TEST(Bpe, WritesUnknownCharactersAsTheModelSays) {
  json model = small_model();
  EXPECT_THAT(encode(model, "xy\u00e9ab"), ElementsAre(0, 0, 0, 3));
  model["fuse_unk"] = true;
  EXPECT_THAT(encode(model, "xyaz"), ElementsAre(0, 1, 0));
  model["byte_fallback"] = true;
  EXPECT_THAT(encode(model, "x\u00e9\u00e8"), ElementsAre(0, 5, 6, 0));
  model["unk_token"] = nullptr;
  try {
    encode(model, "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("no token for the character 'x'"));
  }
}

TEST(Bpe, AModelThatIgnoresMergesLooksUpWholeWords) {
  json model = small_model();
  EXPECT_THAT(encode(model, "abc"), ElementsAre(3, 0));
  model["ignore_merges"] = true;
  EXPECT_THAT(encode(model, "abc"), ElementsAre(4));
}

TEST(Bpe, BytesAndTheirCharactersAreInverse) {
  EXPECT_EQ(character_of_byte(' '), "\u0120");
  EXPECT_EQ(character_of_byte('\n'), "\u010a");
  EXPECT_EQ(character_of_byte('a'), "a");
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    ASSERT_TRUE(bytes_of_characters(character_of_byte(static_cast<unsigned char>(byte)), bytes));
    ASSERT_EQ(bytes, std::string(1, static_cast<char>(byte)));
  }
  EXPECT_FALSE(bytes_of_characters("a b", bytes));
  EXPECT_FALSE(bytes_of_characters("\u6f22", bytes));
}

TEST(Bpe, RefusesWhatIsNotImplementedOrWrong) {
  const auto error = [](const char* key, const json& value) -> std::string {
    json model = small_model();
    model[key] = value;
    try {
      Bpe(JsonReader(model, "model"), false);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error("type", "WordPiece"), HasSubstr("\"WordPiece\" is not implemented"));
  EXPECT_THAT(error("dropout", 0.1), HasSubstr("model.dropout: is not implemented"));
  EXPECT_THAT(error("end_of_word_suffix", "</w>"), HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(error("continuing_subword_prefix", "##"), HasSubstr("is not implemented"));
  EXPECT_THAT(error("unk_token", "<none>"), HasSubstr("the vocabulary lacks this token"));
  EXPECT_THAT(error("merges", json{"a b c"}), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error("merges", json{"a z"}), HasSubstr("the vocabulary lacks a part"));
  EXPECT_THAT(error("vocab", json{{"a", -1}}), HasSubstr("vocab.a: -1 is no id of a token"));
}

// The model has no token for the first byte of the word. A word that is short enough is encoded, so
// that it is reported as unknown; of one that is too long, no byte is read.
TEST(Bpe, RefusesAWordThatIsTooLong) {
  constexpr size_t kLongest = 0x7FFFFFFF;
  void* const pages =
      ::mmap(nullptr, kLongest + 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  json model = small_model();
  model.erase("unk_token");
  const Bpe bpe(JsonReader(model, "model"), false);
  const auto error = [&](size_t bytes) -> std::string {
    BpeWorkspace work;
    std::vector<int32_t> ids;
    try {
      bpe.encode({static_cast<const char*>(pages), bytes}, work, ids);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error(kLongest), HasSubstr("has no token for the character"));
  EXPECT_THAT(error(kLongest + 1),
              HasSubstr("a word of 2147483648 bytes is too long; allowed: 2147483647; split the "
                        "text into documents, as --split-on"));
  ::munmap(pages, kLongest + 1);
}

}  // namespace
}  // namespace yoke
