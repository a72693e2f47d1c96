#include "yoke/state_kind.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(StateKind, CoversItselfAndNothingElse) {
  EXPECT_TRUE(declares_kind("feedback", "feedback"));
  for (const char* other : {"", "feedbac", "feedback2", "xfeedback"})
    EXPECT_FALSE(declares_kind("feedback", other)) << other;
}

TEST(StateKind, ANumberSignStandsForAnyDecimalNumber) {
  for (const char* kind : {"w0_param", "w7_param", "w128_param"})
    EXPECT_TRUE(declares_kind("w#_param", kind)) << kind;
  for (const char* other : {"w_param", "w-1_param", "w1x_param", "w1_param_", "w1_para", "w1"})
    EXPECT_FALSE(declares_kind("w#_param", other)) << other;
  EXPECT_TRUE(declares_kind("p#_q#", "p1_q23"));
  EXPECT_TRUE(declares_kind("p#", "p1"));
  EXPECT_FALSE(declares_kind("p#", "p"));
}

}  // namespace
}  // namespace yoke
