#include "core/cli/step_drawing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/two_ranks.hpp"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::two_ranks;

// An average box lasts 6 / 5 of a unit of time and is two columns wide, so the step has 9 columns.
TEST(Drawing, TextShowsKindsAndMicroBatches) {
  EXPECT_EQ(text_drawing(two_ranks(), 100),
            "   0  FF.IIWWW.\n"
            "      00 00000 \n"
            "   1  ..FBB....\n"
            "        000    \n");
}

TEST(Drawing, AWideStepContinuesBelow) {
  EXPECT_EQ(text_drawing(two_ranks(), 6),
            "   0  FF.IIW\n"
            "      00 000\n"
            "   1  ..FBB.\n"
            "        000 \n"
            "\n"
            "   0  WW.\n"
            "      00 \n"
            "   1  ...\n"
            "         \n");
}

TEST(Drawing, LaterStagesOfARankAreLowerCase) {
  StepForecast forecast = two_ranks();
  forecast.ranks[0].stages = {{1, 1}, {0, 1}};
  EXPECT_THAT(text_drawing(forecast, 100), HasSubstr("ff.iiwww."));
}

TEST(Drawing, ActionsOfOneStageAndMicroBatchAreOneBox) {
  StepForecast forecast = two_ranks();
  ForecastAction& forward = forecast.ranks[0].actions[0];
  forward.end = 0.5;
  ForecastAction more = forward;
  more.begin = 0.5;
  more.end = 1;
  forecast.ranks[0].actions.insert(forecast.ranks[0].actions.begin() + 1, more);
  EXPECT_EQ(text_drawing(forecast, 100), text_drawing(two_ranks(), 100));
}

TEST(Drawing, MicroBatchesThatFollowEachOtherAreTwoBoxes) {
  StepForecast forecast = two_ranks();
  ForecastAction& backward = forecast.ranks[1].actions[1];
  backward.kind = YOKE_FORECAST_FORWARD;
  backward.micro = 1;
  EXPECT_THAT(text_drawing(forecast, 100), HasSubstr("..FFF....\n        011 "));
}

TEST(Drawing, AStepWithoutWorkIsEmpty) {
  StepForecast forecast = two_ranks();
  for (RankForecast& rank : forecast.ranks) {
    for (ForecastAction& a : rank.actions) a.begin = a.end = 0;
  }
  EXPECT_EQ(text_drawing(forecast, 100), "");
  EXPECT_THAT(svg_drawing(forecast, "empty"), HasSubstr("</svg>"));
}

TEST(Drawing, SvgHasABoxForEachComputationAndEscapesItsTitle) {
  const std::string svg = svg_drawing(two_ranks(), "a < b");
  size_t boxes = 0;
  for (size_t at = svg.find("stroke-width"); at != std::string::npos;
       at = svg.find("stroke-width", at + 1))
    ++boxes;
  EXPECT_EQ(boxes, 5u);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  // Only rank 0 says how much memory it needs.
  EXPECT_THAT(svg, HasSubstr("<polygon"));
  EXPECT_THAT(svg.substr(svg.find("<polygon") + 1), Not(HasSubstr("<polygon")));
}

// Rank 0 holds 20 bytes until time 1, which is at x = 300, and then 30 bytes, the full height.
TEST(Drawing, SvgShowsMemoryAsSteps) {
  EXPECT_THAT(svg_drawing(two_ranks(), ""), HasSubstr("300.00,94.33 300.00,87.00"));
}

}  // namespace
}  // namespace yoke
