// Translates learning-rate schedules of nanotron.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/nanotron_compat/plan_request.hpp"
#include "yoke/text.hpp"

namespace yoke::nanotron_compat::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Replaces the section learning_rate_scheduler. keys: those beside learning_rate.
void set_schedule(PlanRequest& request, const char* keys) {
  const std::string before = "  learning_rate_scheduler:";
  request.file.resize(request.file.find(before));
  request.file += concat(before, " {learning_rate: 0.001, ", keys, "}\n");
}

// Returns the lines of a plan about the learning rate, except for train.lr.
std::vector<std::string> lines_of_schedule(const PlanRequest& request) {
  std::vector<std::string> lines;
  for (const std::string& line : request.lines) {
    for (const char* key :
         {"lr_schedule.", "train.warmup", "train.schedule", "train.min_lr_factor"}) {
      if (line.starts_with(key)) lines.push_back(line);
    }
  }
  return lines;
}

struct Rates {
  const char* scheduler;  // keys of learning_rate_scheduler beside learning_rate = 0.001
  std::vector<std::string> lines;
};

TEST(Schedule, BecomesThatOfTheHost) {
  const Rates cases[] = {
      {"lr_warmup_style: linear, lr_warmup_steps: 3",
       {"train.warmup = 3",
        "lr_schedule.first_step = 0",
        "lr_schedule.start_factor = 0",
        "train.schedule = \"constant\""}},
      {"lr_warmup_style: constant, lr_warmup_steps: 3, lr_decay_steps: 0",
       {"train.warmup = 0", "train.schedule = \"constant\""}},
      {"lr_warmup_style: linear",
       {"train.warmup = 1",
        "lr_schedule.first_step = 0",
        "lr_schedule.start_factor = 0",
        "train.schedule = \"constant\""}},
      {"lr_warmup_style: constant, min_decay_lr: 0.0001",
       {"train.warmup = 0",
        "lr_schedule.total_steps = 20",
        "train.schedule = \"linear\"",
        "train.min_lr_factor = 0.1"}},
      {"lr_warmup_style: linear, lr_warmup_steps: 4, lr_decay_style: cosine, lr_decay_steps: 10, "
       "min_decay_lr: 0.0005",
       {"train.warmup = 4",
        "lr_schedule.first_step = 0",
        "lr_schedule.start_factor = 0",
        "lr_schedule.total_steps = 14",
        "train.schedule = \"cosine\"",
        "train.min_lr_factor = 0.5"}},
      {"lr_warmup_style: linear, lr_warmup_steps: 2, lr_decay_starting_step: 12, lr_decay_steps: "
       "8, "
       "lr_decay_style: 1-sqrt, min_decay_lr: 0.0",
       {"train.warmup = 2",
        "lr_schedule.first_step = 0",
        "lr_schedule.start_factor = 0",
        "lr_schedule.total_steps = 20",
        "train.schedule = \"wsd\"",
        "lr_schedule.decay_steps = 8",
        "lr_schedule.decay_shape = \"sqrt\"",
        "train.min_lr_factor = 0"}},
      {"lr_warmup_style: constant, lr_warmup_steps: 5, min_decay_lr: 0.0",
       {"train.warmup = 0",
        "lr_schedule.total_steps = 20",
        "train.schedule = \"wsd\"",
        "lr_schedule.decay_steps = 15",
        "lr_schedule.decay_shape = \"linear\"",
        "train.min_lr_factor = 0"}},
  };
  for (const Rates& c : cases) {
    PlanRequest request;
    set_schedule(request, c.scheduler);
    EXPECT_THAT(request.ask(), IsEmpty()) << c.scheduler;
    EXPECT_EQ(lines_of_schedule(request), c.lines) << c.scheduler;
  }
}

TEST(Schedule, IsRefusedWhereTheHostHasNone) {
  const Case cases[] = {
      {"", "lr_warmup_style: linear, min_decay_lr: 0.0", "gives the first update the rate 0"},
      {"",
       "lr_warmup_style: linear, lr_warmup_steps: 9, lr_decay_starting_step: 5, min_decay_lr: 0.0",
       "lr_decay_starting_step = 5; allowed: 9 or more; it lies within the warmup"},
      {"", "lr_warmup_style: constant, min_decay_lr: 0.5", "allowed: 0 to 0.001"},
      {"",
       "lr_warmup_style: constant, lr_warmup_steps: 2, lr_decay_steps: 0, min_decay_lr: 0.0",
       "1 or more; it is a number of steps"},
      {"", "lr_warmup_style: constant, lr_decay_steps: 0", "square of learning_rate"},
      {"", "lr_warmup_style: linear, lr_decay_steps: 0", "square of learning_rate"},
      {"", "lr_warmup_style: constant, lr_warmup_steps: -1", "lr_warmup_steps = -1"},
      {"", "lr_warmup_style: exponential", "allowed: linear,constant"},
      {"", "lr_warmup_style: linear, lr_decay_style: exponential", "allowed: linear,cosine,1-sqrt"},
  };
  for (const Case& c : cases) {
    PlanRequest request;
    set_schedule(request, c.to);
    EXPECT_THAT(request.ask(), Contains(HasSubstr(c.message))) << c.to;
  }
}

}  // namespace
}  // namespace yoke::nanotron_compat::testing
