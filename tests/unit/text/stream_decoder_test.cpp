#include <gmock/gmock.h>

#include "core/base/utf8.hpp"
#include "tests/unit/text/tiny_tokenizer.hpp"

namespace yoke {
namespace {

using testing::TokenizerFolder;

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const TokenizerFolder folder;
  const auto tokenizer = folder.open();
  StreamDecoder stream(*tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x98), "");
  EXPECT_EQ(stream.push(0x80), "\U0001F600");
  EXPECT_EQ(stream.push(259), "");  // special tokens are left out
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, ReplacesWhatCannotBecomeACharacter) {
  const TokenizerFolder folder;
  const auto tokenizer = folder.open();
  StreamDecoder stream(*tokenizer);
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(stream.push(0x80), r);
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'), r + "a");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push(0x82), "");
  EXPECT_EQ(stream.finish(), r);
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace yoke
