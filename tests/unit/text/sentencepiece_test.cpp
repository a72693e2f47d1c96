// text_oracle.py compares ids and texts with those of sentencepiece itself.
#include "core/text/sentencepiece.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <vector>

#include "core/text/tokenizer.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/text/opened_files.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Fields of protocol buffers; numbers and sizes are below 128.
std::string varint(int number, int value) {
  std::string out(1, static_cast<char>(number << 3));
  if (number >= 16)
    out = {static_cast<char>((number << 3 & 0x7F) | 0x80), static_cast<char>(number >> 4)};
  return out + static_cast<char>(value);
}
std::string bytes(int number, const std::string& value) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(value.size()) +
         value;
}
std::string piece(const std::string& text, float score, int type = 1) {
  char raw[sizeof score];
  std::memcpy(raw, &score, sizeof score);
  return bytes(
      1,
      bytes(1, text) + std::string(1, 2 << 3 | 5) + std::string(raw, sizeof raw) + varint(3, type));
}

constexpr int kUnknown = 2, kControl = 3, kUserDefined = 4;

struct Parts {
  std::string pieces = piece("<unk>", 0, kUnknown) + piece("<s>", 0, kControl) +
                       piece("</s>", 0, kControl) + piece("\u2581", -1) + piece("a", -2) +
                       piece("b", -3) + piece("ab", -4) + piece("\u2581ab", -5) + piece("ba", -6);
  std::string training = varint(3, 2);  // BPE
  std::string normalization = varint(4, 0);
  std::string all() const { return pieces + bytes(2, training) + bytes(3, normalization); }
};

class SentencePiece : public ::testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> open(const std::string& content) const {
    folder_.write("tokenizer.model", content);
    return Tokenizer::open(folder_.path().string());
  }
  std::string error(const std::string& content, int32_t code = YOKE_INVALID_ARGUMENT) const {
    try {
      open(content);
    } catch (const Error& e) {
      return e.code() == code ? e.what() : "another code: " + std::string(e.what());
    }
    return "no error";
  }
  testing::TempFolder folder_;
};

TEST_F(SentencePiece, MergesThePieceWithTheHighestScoreFirst) {
  const auto tokenizer = open(Parts().all());
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(7));
  EXPECT_THAT(tokenizer->encode("bab"), ElementsAre(3, 5, 6));  // ab comes before ba
  EXPECT_THAT(tokenizer->encode("a b"), ElementsAre(3, 4, 3, 5));
  EXPECT_THAT(tokenizer->encode("xy"), ElementsAre(3, 0));
  EXPECT_EQ(tokenizer->decode({7, 3, 5}), "ab b");
}

TEST_F(SentencePiece, HasItsOwnEnds) {
  const auto tokenizer = open(Parts().all());
  EXPECT_EQ(tokenizer->facts().bos, 1);
  EXPECT_EQ(tokenizer->facts().eos, 2);
  EXPECT_THAT(tokenizer->facts().prefix, ElementsAre(1));
  EXPECT_THAT(tokenizer->facts().stops, ElementsAre(2));
  EXPECT_TRUE(tokenizer->is_special(1));
  folder_.write("tokenizer_config.json", R"({"add_bos_token": false})");
  const std::string folder = folder_.path().string();
  EXPECT_THAT(Tokenizer::open(folder)->facts().prefix, ElementsAre());
  EXPECT_THAT(testing::opened_in(folder, [&] { Tokenizer::open(folder); }),
              ElementsAre("tokenizer.model", "tokenizer_config.json"));
}

TEST_F(SentencePiece, MayAddNoSpace) {
  Parts parts;
  parts.normalization += varint(3, 0);
  EXPECT_THAT(open(parts.all())->encode("ab"), ElementsAre(6));
}

TEST_F(SentencePiece, IsReadOnlyWithoutATokenizerJson) {
  open(Parts().all());
  folder_.write("tokenizer.json", "{");
  EXPECT_THAT(Tokenizer::file_in(folder_.path().string()), HasSubstr("tokenizer.json"));
}

TEST_F(SentencePiece, RefusesWhatIsNotImplemented) {
  const auto with = [](const char* part, const std::string& more) {
    Parts parts;
    (part == std::string("pieces")     ? parts.pieces
     : part == std::string("training") ? parts.training
                                       : parts.normalization) += more;
    return parts.all();
  };
  EXPECT_THAT(error(with("training", varint(3, 1))), HasSubstr("the algorithm unigram"));
  EXPECT_THAT(error(with("training", varint(3, 4))), HasSubstr("an algorithm other than BPE"));
  EXPECT_THAT(error(with("training", varint(24, 1))), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(error(with("normalization", bytes(2, "x"))), HasSubstr("other than identity"));
  EXPECT_THAT(error(with("normalization", varint(4, 1))), HasSubstr("remove_extra_whitespaces"));
  EXPECT_THAT(error(with("pieces", piece("<x>", 0, kUserDefined))), HasSubstr("the piece '<x>'"));
  EXPECT_THAT(error(with("pieces", piece("<x>", 0, kUserDefined))),
              HasSubstr("AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"));
}

TEST_F(SentencePiece, NamesADamagedFile) {
  const std::string whole = Parts().all();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{20}, whole.size() - 1})
    EXPECT_THAT(error(whole.substr(0, size), YOKE_DATA_LOSS),
                HasSubstr("tokenizer.model: is not a model of sentencepiece, or is cut off"))
        << size;
  EXPECT_THAT(error(std::string(40, '\xff'), YOKE_DATA_LOSS), HasSubstr("is not a model"));
  EXPECT_THAT(
      error(Parts().pieces + bytes(2, varint(3, 2) + varint(41, 99)) + bytes(3, varint(4, 0)),
            YOKE_DATA_LOSS),
      HasSubstr("is not a model"));
}

}  // namespace
}  // namespace yoke
