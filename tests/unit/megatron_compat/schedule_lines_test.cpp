// Which schedule of the host a command line means.
#include "plugins/megatron_compat/config/schedule_lines.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/unit/megatron_compat/plan_request.hpp"

namespace yoke::megatron_compat::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Schedule {
  const char* arguments;
  std::map<std::string, std::string> lines;
};

TEST(Schedules, BecomeThoseOfTheHost) {
  const Schedule cases[] = {
      {"--lr-decay-style linear --min-lr 1e-4 --lr-warmup-iters 4",
       {{"train.schedule", "\"linear\""},
        {"train.min_lr_factor", "0.1"},
        {"train.warmup", "4"},
        {"lr_schedule.first_step", "0"},
        {"lr_schedule.start_factor", "0"},
        {"lr_schedule.total_steps", "20"}}},
      {"--lr-decay-style cosine --lr-decay-iters 16 --lr-warmup-fraction 0.25 --lr-warmup-init "
       "1e-4",
       {{"train.schedule", "\"cosine\""},
        {"train.warmup", "4"},
        {"lr_schedule.start_factor", "0.1"},
        {"lr_schedule.total_steps", "16"}}},
      {"--lr-decay-style cosine --lr-decay-samples 128 --lr-warmup-samples 16",
       {{"train.warmup", "2"}, {"lr_schedule.total_steps", "16"}}},
      {"--lr-decay-style inverse-square-root --lr-warmup-iters 4",
       {{"train.schedule", "\"inverse_sqrt\""},
        {"train.warmup", "4"},
        {"lr_schedule.total_steps", ""}}},
      {"--lr-decay-style inverse-square-root --lr-warmup-iters 4 --lr-decay-iters 20",
       {{"train.schedule", "\"inverse_sqrt\""}}},
      {"--lr-decay-style WSD --lr-wsd-decay-iters 17 --lr-warmup-iters 3",
       {{"lr_schedule.decay_steps", "17"}}},
      {"--lr-decay-style WSD --lr-wsd-decay-iters 5",
       {{"train.schedule", "\"wsd\""},
        {"lr_schedule.decay_steps", "5"},
        {"lr_schedule.decay_shape", "\"exponential\""}}},
      {"--lr-decay-style WSD --lr-wsd-decay-samples 40 --lr-wsd-decay-style minus_sqrt",
       {{"lr_schedule.decay_steps", "5"}, {"lr_schedule.decay_shape", "\"sqrt\""}}},
  };
  for (const Schedule& c : cases) {
    PlanRequest request(c.arguments);
    request.train.erase(request.train.find("--lr-decay-style constant "), 26);
    EXPECT_THAT(request.ask(), IsEmpty()) << c.arguments;
    for (const auto& [key, value] : c.lines)
      EXPECT_EQ(request.line(key), value) << c.arguments << key;
  }
}

TEST(Schedules, ThatTheHostCannotExpressAreRefused) {
  struct {
    const char* arguments;
    const char* message;
  } const cases[] = {
      {"--lr-decay-style inverse-square-root", "with --lr-warmup-iters above 0"},
      {"--lr-decay-style inverse-square-root --lr-warmup-iters 2 --min-lr 1e-5", "and --min-lr 0"},
      {"--lr-decay-style inverse-square-root --lr-warmup-iters 2 --lr-decay-iters 18",
       "--lr-decay-iters = 18; allowed: 19 steps or more"},
      {"--lr-decay-style inverse-square-root --lr-warmup-iters 2 --lr-decay-samples 24",
       "--lr-decay-samples = 24; allowed: 19 steps or more"},
      {"--lr-decay-style WSD", "WSD needs --lr-wsd-decay-iters"},
      {"--lr-decay-style WSD --lr-warmup-iters 3 --lr-wsd-decay-iters 18",
       "allowed: at most 17 steps; the decay would begin within the warmup"},
      {"--lr-decay-style WSD --lr-warmup-iters 3 --lr-decay-iters 10 --lr-wsd-decay-samples 64",
       "--lr-wsd-decay-samples = 64; allowed: at most 7 steps"},
      {"--lr-decay-style cosine --lr-warmup-iters 20",
       "the warmup must end before the schedule does"},
      {"--lr-decay-style cosine --lr-warmup-fraction 0.11", "is not a whole number of steps"},
      {"--lr-decay-style cosine --lr-warmup-samples 9", "a step trains on one global batch"},
      {"--lr-decay-style cosine --lr-decay-iters 9 --lr-decay-samples 72",
       "it contradicts --lr-decay-iters"},
      {"--lr-decay-style cosine --min-lr 1", "it is above --lr"},
  };
  for (const auto& c : cases) {
    PlanRequest request(c.arguments);
    request.train.erase(request.train.find("--lr-decay-style constant "), 26);
    EXPECT_THAT(request.ask(), Contains(HasSubstr(c.message))) << c.arguments;
  }
}

// The rate of the last of 20 steps is that of 19 steps.
TEST(Schedules, OfInverseSquareRootMayEndAtTheLastStep) {
  PlanRequest request(
      "--lr-decay-style inverse-square-root --lr-warmup-iters 2 --lr-decay-iters 19");
  request.train.erase(request.train.find("--lr-decay-style constant "), 26);
  EXPECT_THAT(request.ask(), Not(Contains(HasSubstr("--lr-decay-iters"))));
}

}  // namespace
}  // namespace yoke::megatron_compat::testing
