#include "core/backend/forecast.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/two_ranks.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using testing::two_ranks;

YokePlan plan_with(int32_t pp) {
  YokePlan plan{};
  plan.degree[YOKE_PP] = pp;
  return plan;
}

YokeModelSummary model_of(uint64_t blocks) {
  YokeModelSummary model{};
  model.num_blocks = blocks;
  return model;
}

// What a backend would report; a test damages it.
struct Reported {
  YokeBlockRange stage{0, 1};
  YokeForecastAction action{.name = YOKE_STRING("Forward"),
                            .kind = YOKE_FORECAST_FORWARD,
                            .block = 0,
                            .micro = 0,
                            .axis = -1,
                            .payload_bytes = 0,
                            .begin = 0,
                            .end = 1,
                            .unsharded_bytes = 2,
                            .activation_bytes = 3,
                            .temporary_bytes = 4};
  YokeForecast forecast{.header = YOKE_HEADER(YokeForecast, YOKE_ID_FORECAST),
                        .pp = 0,
                        .reserved = 0,
                        .stages = &stage,
                        .num_stages = 1,
                        .actions = &action,
                        .num_actions = 1,
                        .param_bytes = 10,
                        .grad_bytes = 20,
                        .optimizer_bytes = 40};

  StepForecast collect(int32_t pp = 1) {
    ForecastCollector collector(nullptr);
    const auto& wanted = *reinterpret_cast<const YokeForecasts*>(collector.extension());
    wanted.add(wanted.ctx, &forecast);
    return collector.result(plan_with(pp), model_of(1));
  }
  std::string fault(int32_t pp = 1) {
    try {
      collect(pp);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), YOKE_INTERNAL);
      return e.what();
    }
    return "";
  }
};

TEST(Forecast, IsCollectedFromWhatABackendReports) {
  Reported reported;
  const StepForecast forecast = reported.collect();
  ASSERT_EQ(forecast.ranks.size(), 1u);
  const RankForecast& rank = forecast.ranks[0];
  EXPECT_EQ(rank.stages[0].count, 1);
  EXPECT_EQ(rank.actions[0].name, "Forward");
  EXPECT_EQ(rank.bytes_at(0), 10 + 20 + 40 + 2 + 3 + 4);
}

TEST(Forecast, HasNoRanksIfNothingIsReported) {
  const ForecastCollector collector(nullptr);
  EXPECT_TRUE(collector.result(plan_with(2), model_of(3)).ranks.empty());
}

TEST(Forecast, KeepsTheExtensionsBehindIt) {
  const YokeHeader next{sizeof(YokeHeader), YOKE_ID_BACKENDS, nullptr};
  const ForecastCollector collector(&next);
  EXPECT_EQ(collector.extension()->next, &next);
}

TEST(Forecast, WhatContradictsTheContractIsADefectOfTheBackend) {
  EXPECT_THAT(Reported().fault(2), HasSubstr("covers 1 coordinates on pp, but pp_degree = 2"));
  const auto fault_after = [](auto damage) {
    Reported reported;
    damage(reported);
    return reported.fault();
  };
  EXPECT_THAT(fault_after([](Reported& r) { r.forecast.pp = 1; }), HasSubstr("coordinates on pp"));
  EXPECT_THAT(fault_after([](Reported& r) { r.forecast.num_actions = 0; }), HasSubstr("no action"));
  EXPECT_THAT(fault_after([](Reported& r) { r.stage.count = 2; }),
              HasSubstr("stage [0, 2) is outside of the 1 blocks"));
  EXPECT_THAT(fault_after([](Reported& r) { r.action.end = -1; }), HasSubstr("begin 0, end -1"));
  EXPECT_THAT(fault_after([](Reported& r) { r.action.begin = -1; }), HasSubstr("begin -1"));
  EXPECT_THAT(fault_after([](Reported& r) { r.action.block = 1; }), HasSubstr("block 1,"));
  EXPECT_NE(fault_after([](Reported& r) { r.action.kind = 99; }), "");
  EXPECT_NE(fault_after([](Reported& r) { r.action.axis = YOKE_NUM_AXES; }), "");
}

// The ranks compute 4 and 2 of 5 units of time.
TEST(Forecast, TheBubbleIsWhatTheRanksDoNotCompute) {
  const StepForecast forecast = two_ranks();
  EXPECT_DOUBLE_EQ(forecast.end(), 5);
  EXPECT_DOUBLE_EQ(forecast.bubble(), 1 - 6.0 / 10);
  EXPECT_DOUBLE_EQ(forecast.load(0), 4.0 / 3);
  EXPECT_DOUBLE_EQ(forecast.load(1), 2.0 / 3);
}

TEST(Forecast, ThePeakIsTheActionWithTheMostMemory) {
  const StepForecast forecast = two_ranks();
  EXPECT_EQ(forecast.ranks[0].peak(), 1u);
  EXPECT_EQ(forecast.ranks[0].bytes_at(1), 100 + 30);
  EXPECT_EQ(forecast.ranks[1].bytes_at(0), -1);  // its activations are unknown
}

TEST(Forecast, TemporaryMemoryThatIsUnknownIsLeftOut) {
  StepForecast forecast = two_ranks();
  RankForecast& rank = forecast.ranks[0];
  EXPECT_FALSE(forecast.lacks_temporary());
  forecast.ranks[1].actions[0].temporary_bytes = -1;
  EXPECT_FALSE(forecast.lacks_temporary()) << "there is no total of rank 1 anyway";
  rank.actions[3].temporary_bytes = -1;
  EXPECT_TRUE(forecast.lacks_temporary());
  EXPECT_EQ(rank.bytes_at(3), 100 + 10);
}

TEST(Forecast, TemporaryMemoryCanMakeThePeak) {
  StepForecast forecast = two_ranks();
  forecast.ranks[0].actions[3].temporary_bytes = 25;
  EXPECT_EQ(forecast.ranks[0].peak(), 3u);
  EXPECT_EQ(forecast.ranks[0].bytes_at(3), 100 + 10 + 25);
}

TEST(Forecast, SurvivesJson) {
  StepForecast forecast = two_ranks();
  forecast.ranks[0].actions[0].temporary_bytes = 9;
  const nlohmann::ordered_json json = to_json(forecast);
  EXPECT_EQ(json["ranks"][0]["actions"][0]["temporary_bytes"], 9);
  EXPECT_EQ(to_json(forecast_from_json(nlohmann::ordered_json::parse(json.dump()))), json);
  EXPECT_EQ(json["ranks"][0]["peak_action"], 1);
  EXPECT_EQ(json["ranks"][0]["actions"][1]["axis"], "pp");
}

}  // namespace
}  // namespace yoke
