#include "core/config/value.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>

#include "core/config/toml_file.hpp"

namespace yoke {
namespace {

TEST(Value, FloatsAreWrittenAsShortAsPeopleWriteThem) {
  EXPECT_EQ(to_text(3e-4), "3e-4");
  EXPECT_EQ(to_text(0.003), "0.003");
  EXPECT_EQ(to_text(0.05), "0.05");
  EXPECT_EQ(to_text(1.0), "1.0");
  EXPECT_EQ(to_text(-60.0), "-60.0");
  EXPECT_EQ(to_text(1e22), "1e22");
  EXPECT_EQ(to_text(1.5e-10), "1.5e-10");
  EXPECT_EQ(to_text(0.0), "0.0");
}

RC_GTEST_PROP(Value, EveryFiniteDoubleReadsBackAsItself, (uint64_t bits)) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  RC_PRE(std::isfinite(value));
  const std::optional<Value> back = parse_toml_value(to_text(value));
  RC_ASSERT(back.has_value());
  RC_ASSERT(*back == Value{value});
}

TEST(Value, StringsReadBackWhateverIsInThem) {
  for (const std::string text : {"",
                                 "plain",
                                 "with \"quotes\" and \\",
                                 "two\nlines\tand a tab",
                                 "\x01\x1f\x7f",
                                 "# no comment",
                                 "caf\xc3\xa9 \xf0\x9f\x90\x82",
                                 "'"}) {
    EXPECT_EQ(parse_toml_value(toml_string(text)), Value{text}) << toml_string(text);
  }
}

TEST(Value, KindsAreNamedInWords) {
  EXPECT_EQ(kind_name(Value{true}), "a boolean");
  EXPECT_EQ(kind_name(Value{int64_t{1}}), "an integer");
  EXPECT_EQ(kind_name(Value{1.0}), "a float");
  EXPECT_EQ(kind_name(Value{std::string("1")}), "a string");
  EXPECT_EQ(kind_name(*parse_toml_value("[1]")), "a list");
  EXPECT_EQ(kind_name(*parse_toml_value("2024-01-01")), "a date or time");
  EXPECT_EQ(kind_name(*parse_toml_value("{a = 1}")), "a table");
}

TEST(Value, ATextThatIsNoTomlValueIsNone) {
  for (const char* text : {"", "novels.txt", "1 2", "\"open", "1\nother = 2", "yes"}) {
    EXPECT_EQ(parse_toml_value(text), std::nullopt) << text;
  }
}

TEST(Value, CleanTextIsUtf8WithoutNul) {
  for (const char* text :
       {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x90\x82", "\xef\xbf\xbf"}) {
    EXPECT_TRUE(is_clean_text(text)) << text;
  }
  const std::string_view nul("a\0b", 3);
  EXPECT_FALSE(is_clean_text(nul));
  // These are a lone continuation byte, a truncated sequence, overlong forms, a surrogate, and a
  // code point above U+10FFFF.
  for (const char* text : {"\x80",
                           "\xc3",
                           "\xc0\xaf",
                           "\xe0\x80\x80",
                           "\xf0\x80\x80\x80",
                           "\xed\xa0\x80",
                           "\xf4\x90\x80\x80",
                           "\xff",
                           "\xe2\x82"}) {
    EXPECT_FALSE(is_clean_text(text)) << text;
  }
}

}  // namespace
}  // namespace yoke
