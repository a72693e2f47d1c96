#include "core/metrics/bigram.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "yoke/error.hpp"

namespace yoke {
namespace {

std::span<const uint8_t> bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
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

TEST(BigramLoss, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(bigram_loss(bytes("aa"), bytes("a"), 1.0), Error);
  EXPECT_THROW(bigram_loss(bytes("aa"), bytes("aa"), 0.0), Error);
}

}  // namespace
}  // namespace yoke
