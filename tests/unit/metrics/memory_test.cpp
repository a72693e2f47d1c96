#include "core/metrics/memory.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace yoke {
namespace {

TEST(Memory, GrowsWhenMemoryIsTouched) {
  const int64_t before = resident_bytes();
  std::vector<char> block(64 << 20, 1);
  EXPECT_GE(resident_bytes(), before + (60 << 20));
  EXPECT_GE(peak_resident_bytes(), before + (60 << 20));
  EXPECT_GE(total_memory_bytes(), peak_resident_bytes());
  EXPECT_EQ(block[block.size() / 2], 1);
}

}  // namespace
}  // namespace yoke
