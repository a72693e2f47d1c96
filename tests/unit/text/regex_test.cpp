#include "core/text/regex.hpp"

#include <gmock/gmock.h>

#include "core/base/utf8.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& pattern) {
  try {
    Regex{pattern};
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

// Returns the parts of the text that match.
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern);
  RegexMatcher matcher;
  std::vector<std::string> found;
  size_t at = 0;
  while (const std::optional<Span> match = matcher.find(regex, text, at)) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
  }
  return found;
}

TEST(Regex, SpaceIsWhiteSpaceOfUnicode) {
  const std::string yes = "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000";
  const std::string no = "\u180e\u200b\ufeff_";
  EXPECT_EQ(matches(R"(\s+)", yes), std::vector{yes});
  EXPECT_TRUE(matches(R"(\s|[\s])", no).empty());
  EXPECT_EQ(matches(R"(\S+)", no + yes), std::vector{no});
  EXPECT_EQ(matches(R"([^\s]+)", no + yes), std::vector{no});
}

// Superscripts and fractions are word characters if they are in Latin-1, but not inside of classes.
TEST(Regex, WordCharactersAreThoseOfOniguruma) {
  const std::string yes = "aZ09_\u00e9\u0301\u203f\u2167\u24b6\u6f22\u0664";
  const std::string no = " -'\u00b7\u2074\u2153\u200d\u20ac";
  EXPECT_EQ(matches(R"(\w+)", no + yes + no), std::vector{yes});
  EXPECT_EQ(matches(R"([\w-]+)", "!" + yes + "-"), std::vector{yes + "-"});
  EXPECT_EQ(matches(R"(\W+)", yes + no), std::vector{no});
  EXPECT_EQ(matches(R"([^\w]+)", yes + no), std::vector{no});
  const std::string latin1 = "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be";
  EXPECT_EQ(matches(R"(\w+)", latin1), std::vector{latin1});
  EXPECT_EQ(matches(R"([^\w]+)", latin1), std::vector{latin1});
}

TEST(Regex, AScriptIsNotItsExtensions) {
  EXPECT_TRUE(matches(R"(\p{Hiragana})", "\u30fc").empty());  // used with Hiragana, but Common
  EXPECT_EQ(matches(R"(\p{Hiragana}+)", "a\u304b\u306a").size(), 1u);
}

TEST(Regex, ReadsClassesGroupsAndProperties) {
  EXPECT_EQ(matches(R"((?i:'s|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})", "we'LL see 12345"),
            (std::vector<std::string>{"we", "'LL", " see", "123", "45"}));
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", "a   b "), (std::vector<std::string>{"  ", " ", " "}));
  EXPECT_EQ(matches(R"([\]\[\\\-]+)", "a]-[\\b"), std::vector<std::string>{"]-[\\"});
}

TEST(Regex, ReadsRepetitions) {
  EXPECT_EQ(matches("a{2}", "aaaaa").size(), 2u);
  EXPECT_EQ(matches("a{1,2}?", "aaaaa").size(), 5u);
  EXPECT_EQ(matches("[{2}+]", "a{2}+"), (std::vector<std::string>{"{", "2", "}", "+"}));
  EXPECT_EQ(matches(R"(\{2}+)", "a{2}}"), std::vector<std::string>{"{2}}"});
  EXPECT_EQ(matches(R"(\x{61}+)", "aab"), std::vector<std::string>{"aa"});
  EXPECT_EQ(matches("a{b}+", "a{b}}"), std::vector<std::string>{"a{b}}"});
}

TEST(Regex, RefusesWhatDiffersBetweenTheEngines) {
  for (const char* pattern : {R"(\b)",
                              R"(\h)",
                              R"([a&&b])",
                              R"([[:alpha:]])",
                              R"((?m:.))",
                              R"((?<n>a))",
                              R"(a{,3})",
                              R"(a{1,3}+)",
                              R"(a{2}+)",
                              R"(a{2,}+)",
                              R"(a{2}?)",
                              R"(\p{^L})",
                              R"([\S])",
                              R"([\W])",
                              R"([a-\w])",
                              R"((*FAIL))",
                              R"(\)"})
    EXPECT_THAT(error_of(pattern), HasSubstr("is not implemented")) << pattern;
  EXPECT_THAT(error_of(R"(\p{L}{1,3}+)"), HasSubstr("contains {1,3}+ at its byte 5"));
  EXPECT_THAT(error_of(R"(\p{Nonsense})"), HasSubstr("is not implemented"));
  EXPECT_THAT(error_of("(a"), HasSubstr("is not implemented"));
}

TEST(Regex, SearchesLongTexts) {
  const std::string spaces(3 << 20, ' ');
  EXPECT_EQ(matches(R"(\s+(?!\S)|\s+)", spaces + "a").size(), 2u);
}

}  // namespace
}  // namespace yoke
