#include "core/metrics/bigram.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

BytePairs bytes(const std::string& text) {
  std::vector<int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  BytePairs pairs;
  pairs.add(ids);
  return pairs;
}

TEST(BigramLoss, MatchesAHandComputedExample) {
  // The training pairs are ab, ba, ab, bb: b follows a twice; a and b follow b once each. The
  // held-out pairs are ab, ba, ac, and alpha is 1.
  const double ab = (2.0 + 1) / (2 + 256);
  const double ba = (1.0 + 1) / (2 + 256);
  const double ac = (0.0 + 1) / (2 + 256);
  const double expected = -(std::log(ab) + std::log(ba) + std::log(ac)) / 3;
  EXPECT_NEAR(bigram_loss(bytes("ababb"), bytes("abac"), 1.0), expected, 1e-14);
}

TEST(BigramLoss, IsUniformForBytesNeverSeen) {
  EXPECT_NEAR(bigram_loss(bytes("aaaa"), bytes("\xff\xfe"), 0.5), std::log(256.0), 1e-14);
  EXPECT_NEAR(bigram_loss(bytes(""), bytes("xyz"), 0.5), std::log(256.0), 1e-14);
}

TEST(BytePairs, DoesNotJoinTexts) {
  BytePairs pairs = bytes("ab");
  pairs.add(std::vector<int64_t>{'b', 'a', 'b'});
  EXPECT_EQ(pairs.count('a', 'b'), 2);
  EXPECT_EQ(pairs.count('b', 'a'), 1);
  EXPECT_EQ(pairs.count('b', 'b'), 0);
  EXPECT_EQ(pairs.total(), 3);
}

TEST(BigramLoss, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(bigram_loss(bytes("aa"), bytes("a"), 1.0), Error);
  EXPECT_THROW(bigram_loss(bytes("aa"), bytes("aa"), 0.0), Error);
}

}  // namespace
}  // namespace yoke
