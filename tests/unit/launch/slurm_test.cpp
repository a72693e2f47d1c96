#include "core/launch/slurm.hpp"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(Slurm, NamesTheFirstHostOfAList) {
  EXPECT_EQ(first_host("node"), "node");
  EXPECT_EQ(first_host("b2,a1"), "b2");
  EXPECT_EQ(first_host("node[03-07,9],gpu1"), "node03");
  EXPECT_EQ(first_host("node[12,14]"), "node12");
  EXPECT_EQ(first_host("rack[1-2]node[008-015]-ib,x"), "rack1node008-ib");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("cut[3"), "cut3");
}

TEST(Slurm, CountsTheTasksOfANode) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("3,2(x2)", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), 0);
  EXPECT_EQ(tasks_on_node("", 0), 0);
  EXPECT_EQ(tasks_on_node("many", 0), 0);
}

TEST(Slurm, GivesEveryStepAPortBelowTheOnesThatTheKernelHandsOut) {
  EXPECT_NE(step_port(7, 0), step_port(7, 1));
  EXPECT_NE(step_port(7, 0), step_port(8, 0));
  for (const int64_t job : {0L, 9999L, 12345678L}) {
    EXPECT_GE(step_port(job, 0), 15000);
    EXPECT_LT(step_port(job, 0), 25000);
  }
}

}  // namespace
}  // namespace yoke
