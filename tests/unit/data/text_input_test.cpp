#include "core/data/text_input.hpp"

#include <gmock/gmock.h>

#include "tests/unit/data/scratch_file.hpp"
#include "tests/unit/data/token_files.hpp"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const DocumentSplit kBlankLines{DocumentSplit::Kind::kBlankLines, ""};

// Returns the documents of all parts, whose sizes are `bytes` or more.
std::vector<std::string> documents(TextInput&& input, size_t bytes) {
  std::vector<std::string> found;
  for (size_t begin = 0; begin < input.size();) {
    const InputPart part = input.take(begin, bytes);
    EXPECT_EQ(part.begin, begin);
    input.for_each_document(
        part, [&](const Document& document, size_t) { found.emplace_back(document.text); });
    begin = part.end;
  }
  return found;
}

TEST(TextInput, AWholeFileIsOneDocument) {
  const ScratchFile file("one\n\ntwo\n");
  EXPECT_THAT(documents(TextInput(file.path(), {}), 1), ElementsAre("one\n\ntwo\n"));
  const ScratchFile empty("");
  EXPECT_TRUE(documents(TextInput(empty.path(), {}), 1).empty());
}

TEST(TextInput, PartsDoNotChangeTheDocuments) {
  const ScratchFile file("a\nb\n \t\r\n\nc\n\n\n\nd\ne");
  const ScratchFile lines("{}\n\n  \n{1}\r\n{22}", ".jsonl");
  const ScratchFile separated("a<>b<><>c<");
  for (size_t bytes = 1; bytes < 30; ++bytes) {
    EXPECT_THAT(documents(TextInput(file.path(), kBlankLines), bytes),
                ElementsAre("a\nb", "c", "d\ne"));
    EXPECT_THAT(documents(TextInput(lines.path(), {}), bytes), ElementsAre("{}", "{1}\r", "{22}"));
    EXPECT_THAT(
        documents(TextInput(separated.path(), {DocumentSplit::Kind::kSeparator, "<>"}), bytes),
        ElementsAre("a", "b", "", "c<"));
  }
  EXPECT_EQ(TextInput(file.path(), kBlankLines).take(0, 1).end, 9u);
}

TEST(TextInput, ALineMayEndWithCarriageReturnAndNewline) {
  const ScratchFile file("a\r\nb\r\n\r\n \r\nc\r\n\r\n"), blank("\r\n\r\na");
  for (size_t bytes = 1; bytes < 20; ++bytes) {
    EXPECT_THAT(documents(TextInput(file.path(), kBlankLines), bytes), ElementsAre("a\r\nb", "c"));
    EXPECT_THAT(documents(TextInput(blank.path(), kBlankLines), bytes), ElementsAre("", "a"));
  }
}

TEST(TextInput, NamesThePlaceOfADocument) {
  const ScratchFile text("a\n\nb"), lines("{}\n\n{}\n", ".jsonl");
  EXPECT_EQ(TextInput(text.path(), {}).name_of(3), text.path() + ": the document at byte 3");
  EXPECT_EQ(TextInput(lines.path(), {}).name_of(4), lines.path() + ":3");
}

TEST(TextInput, RefusesOtherFormatsByName) {
  const auto error = [](const std::string& content, const char* extension) {
    const ScratchFile file(content, extension);
    return std::string(error_of([&] { TextInput(file.path(), {}); }).what());
  };
  EXPECT_THAT(error("\x1f\x8b....", ".gz"), HasSubstr("is compressed"));
  EXPECT_THAT(error("[]", ".json"), HasSubstr(".jsonl with one object per line"));
  EXPECT_THAT(error_of([] { TextInput("no/such.txt", {}); }).what(), HasSubstr("does not exist"));
}

}  // namespace
}  // namespace yoke
