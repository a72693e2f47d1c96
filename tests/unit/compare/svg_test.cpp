#include "core/compare/svg.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>
#include <set>

#include "tests/unit/compare/made_up.hpp"

namespace yoke::compare {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns the coordinates of every text that is one of `names`.
std::set<std::pair<std::string, std::string>> places_of(const std::string& svg) {
  std::set<std::pair<std::string, std::string>> places;
  const std::regex pattern("<text x=\"([^\"]*)\" y=\"([^\"]*)\"[^>]*>case [0-9]+</text>");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it)
    places.emplace((*it)[1], (*it)[2]);
  return places;
}

TEST(Points, HaveNamesThatDoNotCoverEachOther) {
  Points plot{"title", "x", "y", {}};
  for (int i = 0; i < 20; ++i) plot.points.push_back({"case " + std::to_string(i), 5, 7, i == 19});
  const std::string svg = draw(plot);
  EXPECT_EQ(count(svg, "<circle"), 21u);  // a point each, and one ring
  EXPECT_EQ(count(svg, "<title>case "), 20u);
  const auto places = places_of(svg);
  EXPECT_EQ(places.size(), count(svg, "\">case "));  // no two names at one place
  EXPECT_GE(places.size(), 4u);
  EXPECT_LT(places.size(), 20u);
  EXPECT_THAT(svg, HasSubstr(">case 19</text>")) << "a chosen point has its name";
}

TEST(Points, HaveALogarithmicAxisIfTimesDifferMuch) {
  const auto with = [](double most) {
    return draw(
        Points{"t", "x", "y", {{"a", 20, 1, false}, {"b", 30, 1, false}, {"c", most, 1, false}}});
  };
  EXPECT_THAT(with(200),
              ::testing::AllOf(HasSubstr(">20<"), HasSubstr(">50<"), HasSubstr(">200<")));
  EXPECT_THAT(with(40), Not(HasSubstr(">200<")));
}

TEST(Points, StayInsideThePicture) {
  const std::string svg = draw(
      Points{"title", "x", "y", {{"case 1", 1, 1, false}, {"case 22222222", 100, 100, false}}});
  const std::regex pattern("<circle cx=\"([^\"]*)\" cy=\"([^\"]*)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
    EXPECT_GT(std::stod((*it)[1]), 150);
    EXPECT_LT(std::stod((*it)[1]), 840);
  }
  EXPECT_THAT(svg, HasSubstr("text-anchor=\"end\">case 2222"));  // there is no room on the right
}

Lines lines_through(std::vector<std::pair<double, double>> points) {
  return {"title", "x", "y", false, {{"a curve", std::move(points)}}, 0};
}

// The values 1 and its next number have no five multiples of a round number between them.
TEST(Lines, OfValuesThatDifferByRoundingAreDrawn) {
  EXPECT_EQ(count(draw(lines_through({{1, 1}, {2, std::nextafter(1, 2)}})), "<polyline"), 1u);
  EXPECT_EQ(count(draw(lines_through({{1e17, 3}, {1e17 + 16, 4}})), "<polyline"), 1u);
}

TEST(Lines, LeaveOutInfiniteValues) {
  const std::string svg = draw(lines_through({{1, 2}, {2, INFINITY}, {3, NAN}, {4, 5}}));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, HasSubstr(">5</text>")) << "the axis ends at the largest finite value";
}

// One slow step must not make all other boxes too small to be read.
TEST(Boxes, CountValuesFarBeyondTheOthers) {
  std::vector<double> usual(99, 40), slow = usual;
  slow.push_back(2400);
  const std::string svg = draw(Boxes{"title", "ms", {{"a", usual}, {"b", slow}}});
  EXPECT_THAT(svg, HasSubstr("1 step of 2400 not shown"));
  EXPECT_THAT(svg, Not(HasSubstr(">2000<")));  // a tick of an axis that ends at 2400
  EXPECT_THAT(draw(Boxes{"title", "ms", {{"a", {40, 41}}, {"b", {50, 55}}}}),
              Not(HasSubstr("not shown")));
}

TEST(Bars, HatchOnlyTheLastPart) {
  Bars plot{"title", "MiB", {"known", "rest"}, {{"a", {1, 2}}, {"b", {3, 0}}}, 1, true};
  EXPECT_EQ(count(draw(plot), "url(#h)"), 2u);  // one bar and the legend
  plot.hatched = false;
  EXPECT_EQ(count(draw(plot), "url(#h)"), 0u);
}

}  // namespace
}  // namespace yoke::compare
