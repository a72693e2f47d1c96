#include "core/comm/signature.hpp"

#include <c10/core/ScalarType.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

Signature gather(int64_t count) {
  return {Collective::kAllGather, static_cast<int32_t>(c10::kFloat), count, 0, 0};
}

History of(std::vector<int64_t> counts) {
  History history;
  for (const int64_t count : counts) {
    Signature s = gather(count);
    history.add(s);
  }
  return history;
}

TEST(History, HashDependsOnContentAndOrder) {
  EXPECT_EQ(of({1, 2, 3}).hash(), of({1, 2, 3}).hash());
  EXPECT_NE(of({1, 2, 3}).hash(), of({1, 3, 2}).hash());
  EXPECT_NE(of({1, 2}).hash(), of({1, 2, 2}).hash());
  History other;
  Signature s = gather(1);
  s.dtype = static_cast<int32_t>(c10::kDouble);
  other.add(s);
  EXPECT_NE(of({1}).hash(), other.hash());
}

TEST(History, KeepsTheLatestInOrder) {
  History history;
  for (uint64_t i = 1; i <= History::kKept + 10; ++i) {
    Signature s = gather(static_cast<int64_t>(i));
    history.add(s);
    EXPECT_EQ(s.sequence, i);
  }
  const auto latest = history.latest();
  ASSERT_EQ(latest.size(), History::kKept);
  for (size_t i = 0; i < latest.size(); ++i) EXPECT_EQ(latest[i].sequence, i + 11);
}

}  // namespace
}  // namespace yoke
