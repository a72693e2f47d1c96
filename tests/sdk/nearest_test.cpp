#include "yoke/nearest.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace yoke {
namespace {

// The edit distance by its recursive definition. It takes exponential time, so use it for short
// words only.
int plain_distance(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  const std::string a1 = a.substr(1), b1 = b.substr(1);
  int best = plain_distance(a1, b1) + (a[0] == b[0] ? 0 : 1);
  best = std::min(best, plain_distance(a1, b) + 1);
  best = std::min(best, plain_distance(a, b1) + 1);
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0]) {
    best = std::min(best, plain_distance(a.substr(2), b.substr(2)) + 1);
  }
  return best;
}

std::vector<std::string> words_up_to(size_t length) {
  std::vector<std::string> words{""};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].size() == length) continue;
    const std::string word = words[i];
    for (const char c : {'a', 'b', 'c'}) words.push_back(word + c);
  }
  return words;
}

TEST(Nearest, EditDistanceEqualsItsDefinitionOnAllShortWords) {
  const std::vector<std::string> words = words_up_to(4);
  for (const std::string& a : words) {
    for (const std::string& b : words) {
      ASSERT_EQ(edit_distance(a, b), plain_distance(a, b)) << a << " " << b;
    }
  }
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  const std::vector<std::string> words{"train.steps", "train.lr", "data.path", "seed"};
  EXPECT_EQ(nearest("train.step", words), "train.steps");
  EXPECT_EQ(nearest("trian.lr", words), "train.lr");
  EXPECT_EQ(nearest("sede", words), "seed");
}

TEST(Nearest, SaysNothingRatherThanSomethingFarFetched) {
  EXPECT_EQ(nearest("fp16", {"fp32", "fp64"}), "");
  EXPECT_EQ(nearest("x", {}), "");
  EXPECT_EQ(did_you_mean("gradient", {"seed", "device"}), "");
}

TEST(Nearest, TakesTheFirstOfEquallyNearOnes) {
  EXPECT_EQ(nearest("fp33", {"fp32", "fp34"}), "fp32");
}

TEST(Nearest, WordsTheSuggestion) {
  EXPECT_EQ(did_you_mean("adam", {"adamw", "sgd"}), "; did you mean 'adamw'?");
}

}  // namespace
}  // namespace yoke
