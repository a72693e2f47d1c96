#include "core/base/utf8.hpp"

#include <gmock/gmock.h>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

TEST(Utf8, WritesAndReadsEveryCodePoint) {
  std::string all;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string one;
    append_utf8(code, one);
    const Utf8Char c = utf8_char(one, 0);
    ASSERT_TRUE(c.valid) << static_cast<uint32_t>(code);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.bytes, one.size());
    for (size_t cut = 1; cut < one.size(); ++cut)
      ASSERT_TRUE(utf8_char(std::string_view(one).substr(0, cut), 0).truncated)
          << static_cast<uint32_t>(code);
    all += one;
  }
  EXPECT_EQ(first_invalid_utf8(all), std::string::npos);
  EXPECT_EQ(replace_invalid_utf8(all), all);
}

TEST(Utf8, FindsTheFirstByteThatIsInvalid) {
  const std::string good = "twelve bytes";
  for (const std::string bad : {"\x80",
                                "\xC0\x80",
                                "\xC1\xBF",
                                "\xE0\x9F\xBF",
                                "\xED\xA0\x80",
                                "\xF0\x8F\xBF\xBF",
                                "\xF4\x90\x80\x80",
                                "\xF5\x80\x80\x80",
                                "\xFF",
                                "\xE2\x82",
                                "\xE2\x82z",
                                "\xF0\x9F\x98"}) {
    EXPECT_EQ(first_invalid_utf8(good + bad + good), good.size()) << bad;
    EXPECT_EQ(first_invalid_utf8(good + bad), good.size()) << bad;
  }
}

TEST(Utf8, ReplacesEachMaximalSubpart) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98"
                                 "b"),
            "a" + r + "b");
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\x80"), r + r + r);
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\xE2\x82\xAC"), r + "\xE2\x82\xAC");
}

TEST(Utf8, NamesTheOffsetOfTheFirstInvalidByte) {
  try {
    require_utf8("caf\xE9 noir", "line 3");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    EXPECT_THAT(e.what(), HasSubstr("line 3 is not UTF-8: its byte 3 is 0xe9"));
  }
}

}  // namespace
}  // namespace yoke
