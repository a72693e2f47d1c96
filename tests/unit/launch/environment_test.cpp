#include "core/launch/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

const Variables kComplete = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "29500"}};

std::optional<TorchrunEnvironment> read(const Variables& variables) {
  return torchrun_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string failure(const std::string& name, const char* value) {
  Variables variables = kComplete;
  variables.erase(name);
  if (value != nullptr) variables[name] = value;
  try {
    read(variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), YOKE_INVALID_ARGUMENT);
    return e.what();
  }
  return "";
}

TEST(TorchrunEnvironment, IsReadWhenComplete) {
  const auto env = read(kComplete);
  ASSERT_TRUE(env);
  EXPECT_EQ(env->rank, 3);
  EXPECT_EQ(env->world_size, 4);
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master_addr, "10.0.0.1");
  EXPECT_EQ(env->master_port, 29500);
}

TEST(TorchrunEnvironment, IsAbsentWhenNoVariableIsSet) {
  EXPECT_FALSE(read({{"HOME", "/"}}));
}

TEST(TorchrunEnvironment, NamesEveryMissingVariable) {
  for (const auto& [name, value] : kComplete) {
    EXPECT_THAT(failure(name, nullptr), HasSubstr(name + " is not set"));
  }
  try {
    read({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(),
                AllOf(HasSubstr("LOCAL_RANK is not set"),
                      HasSubstr("MASTER_ADDR is not set"),
                      HasSubstr("MASTER_PORT is not set"),
                      HasSubstr("use --nproc")));
  }
}

TEST(TorchrunEnvironment, RefusesValuesThatMakeNoSense) {
  EXPECT_THAT(failure("RANK", "one"), HasSubstr("RANK = 'one' is not a whole number"));
  EXPECT_THAT(failure("RANK", "1x"), HasSubstr("RANK = '1x'"));
  EXPECT_THAT(failure("RANK", ""), HasSubstr("RANK = ''"));
  EXPECT_THAT(failure("RANK", "-1"), HasSubstr("RANK = '-1'"));
  EXPECT_THAT(failure("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE = '0'"));
  EXPECT_THAT(failure("RANK", "4"), HasSubstr("RANK = 4 must be below WORLD_SIZE = 4"));
  EXPECT_THAT(failure("LOCAL_RANK", "2"),
              HasSubstr("LOCAL_RANK = 2 must be below LOCAL_WORLD_SIZE = 2"));
  EXPECT_THAT(failure("MASTER_PORT", "65536"), HasSubstr("MASTER_PORT = '65536'"));
}

TEST(Threads, AreAnEqualPartOfTheCoresAndAtLeastOne) {
  EXPECT_EQ(threads_per_rank(8, 2), 4);
  EXPECT_EQ(threads_per_rank(8, 3), 2);
  EXPECT_EQ(threads_per_rank(2, 16), 1);
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace yoke
