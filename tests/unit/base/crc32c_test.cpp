#include "core/base/crc32c.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace yoke {
namespace {

using Function = uint32_t (*)(uint32_t, const void*, size_t);

uint32_t of(Function f, const std::string& text) {
  return f(0, text.data(), text.size());
}

TEST(Crc32c, MatchesKnownVectors) {
  std::string ascending(32, '\0'), descending(32, '\0');
  for (int i = 0; i < 32; ++i) {
    ascending[i] = static_cast<char>(i);
    descending[i] = static_cast<char>(31 - i);
  }
  for (const Function f : {crc32c, crc32c_by_table}) {
    EXPECT_EQ(of(f, ""), 0U);
    EXPECT_EQ(of(f, "123456789"), 0xe3069283U);
    // RFC 3720, appendix B.4
    EXPECT_EQ(of(f, std::string(32, '\0')), 0x8a9136aaU);
    EXPECT_EQ(of(f, std::string(32, '\xff')), 0x62a8ab43U);
    EXPECT_EQ(of(f, ascending), 0x46dd794eU);
    EXPECT_EQ(of(f, descending), 0x113fdb5cU);
  }
}

TEST(Crc32c, IsTheSameByInstructionAndByTableAtAnyPlaceAndLength) {
  std::mt19937 random(1);
  std::string bytes(5000, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size < 300; ++size) {
      ASSERT_EQ(crc32c(7, bytes.data() + begin, size),
                crc32c_by_table(7, bytes.data() + begin, size));
    }
    ASSERT_EQ(crc32c(0, bytes.data() + begin, 4900),
              crc32c_by_table(0, bytes.data() + begin, 4900));
  }
}

TEST(Crc32c, ContinuesFromWhereItStopped) {
  const std::string text = "in pieces or at once, it is one checksum";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t first = crc32c(0, text.data(), cut);
    EXPECT_EQ(crc32c(first, text.data() + cut, text.size() - cut), of(crc32c, text));
  }
}

}  // namespace
}  // namespace yoke
