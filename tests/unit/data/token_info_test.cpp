#include "core/data/token_info.hpp"

#include <gmock/gmock.h>

#include "core/base/files.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

const std::string kGood =
    R"({"format":"yoke-tokens","version":1,"tokens":12,"documents":3,"vocab":300,)"
    R"("tokenizer":"0123456789abcdef","document_end":2,"mask":true})";

// A folder with ids and their description.
class TokenInfoFile : public ::testing::Test {
 protected:
  std::string ids() const { return folder_ / "corpus.v2.bin"; }
  std::string description() const { return folder_ / "corpus.v2.json"; }
  std::optional<TokenInfo> read(const std::string& text) {
    replace_text(description(), text);
    return read_token_info(ids());
  }
  // Returns the error for the good description after `from` was replaced by `to`.
  std::string error_with(const std::string& from, const std::string& to) {
    std::string text = kGood;
    text.replace(text.find(from), from.size(), to);
    const Error e = error_of([&] { read(text); });
    EXPECT_EQ(e.code(), YOKE_DATA_LOSS) << text;
    EXPECT_THAT(e.what(), HasSubstr(description()));
    return e.what();
  }

  testing::TempFolder folder_;
};

TEST_F(TokenInfoFile, ReadsWhatItWrote) {
  TokenInfo info{7, 2, 50257, "00000000deadbeef", std::nullopt, false};
  write_token_info(ids(), info);
  EXPECT_EQ(read_token_info(ids()), info);
  info.document_end = 50256;
  info.mask = true;
  write_token_info(ids(), info);
  EXPECT_EQ(read_token_info(ids()), info);
}

TEST_F(TokenInfoFile, ReadsTheDocumentedForm) {
  EXPECT_EQ(read(kGood), (TokenInfo{12, 3, 300, "0123456789abcdef", 2, true}));
}

TEST_F(TokenInfoFile, ReplacesOnlyTheExtension) {
  EXPECT_EQ(token_info_path("a.b/x.y.bin"), "a.b/x.y.json");
  EXPECT_EQ(mask_path("a.b/x.y.bin"), "a.b/x.y.mask");
  EXPECT_EQ(mask_path("a.b/ids"), "a.b/ids.mask");
}

TEST_F(TokenInfoFile, IgnoresMissingAndOtherFiles) {
  EXPECT_EQ(read_token_info(ids()), std::nullopt);
  EXPECT_EQ(read(R"({"format":"other"})"), std::nullopt);
  EXPECT_EQ(read(R"({"text":"a document"})"), std::nullopt);
  EXPECT_EQ(read("[1, 2]"), std::nullopt);
  EXPECT_EQ(read("{\"text\": 1}\n{\"text\": 2}\n"), std::nullopt);
  EXPECT_EQ(read(std::string(100000, ' ') + kGood), std::nullopt);
  replace_text(description(), kGood);
  EXPECT_EQ(read_token_info(description()), std::nullopt);  // a file does not describe itself
}

TEST_F(TokenInfoFile, RefusesDamagedDescriptions) {
  EXPECT_THAT(error_with("true}", ""), HasSubstr("is damaged, run yoke data prepare again"));
  EXPECT_THAT(error_with("\"tokens\":12", "\"tokens\":-1"), HasSubstr("\"tokens\" must be"));
  EXPECT_THAT(error_with("\"documents\":3,", ""), HasSubstr("\"documents\" must be"));
  EXPECT_THAT(error_with("300", "0"), HasSubstr("\"vocab\" must be a whole number of at least 1"));
  EXPECT_THAT(error_with("abcdef", "ABCDEF"), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(error_with("0123456789", ""), HasSubstr("16 hexadecimal digits"));
  EXPECT_THAT(error_with("\"document_end\":2,", ""), HasSubstr("\"document_end\" is missing"));
  EXPECT_THAT(error_with("_end\":2", "_end\":300"), HasSubstr("300, not below"));
  EXPECT_THAT(error_with("true", "1"), HasSubstr("\"mask\" must be true or false"));
  EXPECT_THAT(error_with("\"version\":1", "\"version\":2"), HasSubstr("reads version 1"));
}

}  // namespace
}  // namespace yoke
