#include "core/text/added_tokens.hpp"

#include <gmock/gmock.h>

namespace yoke {
namespace {

using ::testing::ElementsAre;

// Returns the parts of the text; an added token is in brackets.
std::vector<std::string> parts(const AddedTokens& tokens, const std::string& text) {
  std::vector<std::string> found;
  tokens.split(text, [&](std::string_view part, const AddedToken* token) {
    found.push_back(token == nullptr ? std::string(part) : "[" + std::string(part) + "]");
  });
  return found;
}

TEST(AddedTokens, FindsTheLongestTokenOfEachPlace) {
  AddedTokens tokens;
  tokens.add("<s>", {.id = 1, .content = "<s>"});
  tokens.add("<s><s>", {.id = 2, .content = "<s><s>"});
  EXPECT_THAT(parts(tokens, "a<s>b<s><s><s>"), ElementsAre("a", "[<s>]", "b", "[<s><s>]", "[<s>]"));
  EXPECT_THAT(parts(tokens, "<s"), ElementsAre("<s"));
  EXPECT_TRUE(parts(tokens, "").empty());
}

TEST(AddedTokens, TakeWhiteSpaceOnTheSidesThatTheyDeclare) {
  AddedTokens tokens;
  tokens.add("<l>", {.id = 1, .content = "<l>", .lstrip = true});
  tokens.add("<r>", {.id = 2, .content = "<r>", .rstrip = true});
  EXPECT_THAT(parts(tokens, "a \u3000<l> b"), ElementsAre("a", "[ \u3000<l>]", " b"));
  EXPECT_THAT(parts(tokens, "a <r>\n\u00a0b"), ElementsAre("a ", "[<r>\n\u00a0]", "b"));
  // The white space between two tokens belongs to the first one.
  EXPECT_THAT(parts(tokens, "<r>  <l>"), ElementsAre("[<r>  ]", "[<l>]"));
}

}  // namespace
}  // namespace yoke
