#include "core/control/introduction.hpp"

#include <gtest/gtest.h>

#include "yoke/error.hpp"

namespace yoke {
namespace {

TEST(Introduction, SurvivesTheWay) {
  const Introduction facts{{"key", "", "file:12"}, {"", std::string(2, '\0'), ""}};
  const Introduction back = unpack_introduction(pack_introduction(facts));
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[0].source, "file:12");
  EXPECT_EQ(back[1].value, facts[1].value);
  EXPECT_TRUE(unpack_introduction(pack_introduction({})).empty());
  EXPECT_THROW(unpack_introduction("nonsense"), Error);
  EXPECT_THROW(unpack_introduction(""), Error);
}

TEST(FirstDifferences, AreNoneForEqualRanks) {
  EXPECT_FALSE(first_differences({{0, "a", {{"k", "1", "x"}}}, {1, "b", {{"k", "1", "y"}}}}))
      << "the source does not count";
  EXPECT_FALSE(first_differences({{0, "a", {{"k", "1", ""}}}}));
}

TEST(FirstDifferences, NameTheRanksThatShareAValue) {
  const auto text = first_differences({{0, "a", {{"k", "1", ""}}},
                                       {1, "b", {{"k", "2", "command line"}}},
                                       {2, "b", {{"k", "3", ""}}},
                                       {3, "c", {{"k", "2", ""}}}});
  EXPECT_EQ(text.value_or(""),
            "the ranks do not run the same job:\n  k: rank 0 (a) has 1, ranks 1, 3 have 2 (command "
            "line)");
}

TEST(FirstDifferences, NameKeysThatSomeRanksLack) {
  EXPECT_EQ(
      first_differences({{0, "a", {}}, {1, "b", {{"k", "1", ""}}}}).value_or(""),
      "the ranks do not run the same job:\n  k: rank 0 (a) has no such key, rank 1 (b) has 1");
  EXPECT_EQ(
      first_differences({{0, "a", {{"k", "1", ""}}}, {1, "b", {}}}).value_or(""),
      "the ranks do not run the same job:\n  k: rank 0 (a) has 1, rank 1 (b) has no such key");
}

TEST(FirstDifferences, ListFiveKeysAtMost) {
  Introduction a, b;
  for (char k = 'a'; k < 'i'; ++k) {
    a.push_back({std::string(1, k), "1", ""});
    b.push_back({std::string(1, k), "2", ""});
  }
  const std::string text = first_differences({{0, "x", a}, {1, "y", b}}).value_or("");
  EXPECT_NE(text.find("\n  e: "), std::string::npos);
  EXPECT_EQ(text.find("\n  f: "), std::string::npos);
  EXPECT_NE(text.find("and 3 more keys"), std::string::npos);
}

}  // namespace
}  // namespace yoke
