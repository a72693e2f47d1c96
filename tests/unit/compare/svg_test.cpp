#include "core/compare/svg.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>
#include <set>

#include "tests/unit/compare/made_up.hpp"
#include "yoke/text.hpp"

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
  for (int i = 0; i < 20; ++i)
    plot.points.push_back({"case " + std::to_string(i), "", 5, 7, i == 19});
  const std::string svg = draw(plot, kScreen);
  EXPECT_EQ(count(svg, "<circle"), 21u);  // a point each, and one ring
  EXPECT_EQ(count(svg, "<title>case "), 20u);
  const auto places = places_of(svg);
  EXPECT_EQ(places.size(), count(svg, "\">case "));  // no two names at one place
  EXPECT_GE(places.size(), 4u);
  EXPECT_LT(places.size(), 20u);
  EXPECT_THAT(svg, HasSubstr(">case 19</text>")) << "a chosen point has its name";
}

// All places beside the chosen point are taken by other points.
TEST(Points, HaveALineToANameThatIsFarAway) {
  Points plot{"title", "x", "y", {{"case 1", "", 50, 50, true}}};
  for (int i = 0; i < 9; ++i) {
    plot.points.push_back({"b", "", 50.0 + 4 * i, 50, false});
    plot.points.push_back({"b", "", 50.0 - 4 * i, 50, false});
    for (const double y : {49.84, 50.16}) {
      plot.points.push_back({"b", "", 50.0 + 4 * i, y, false});
      plot.points.push_back({"b", "", 50.0 - 4 * i, y, false});
    }
  }
  const std::string svg = draw(plot, kScreen);
  EXPECT_THAT(svg, HasSubstr("<line"));
  EXPECT_EQ(count(svg, "class=\"range\"/><text"), 1u);
  EXPECT_THAT(svg, HasSubstr(">case 1</text>"));
}

// The name is too wide for both sides of the picture.
TEST(Points, HaveTheirNameInAnyCaseIfTheyAreChosen) {
  const std::string name(60, 'a');
  Points plot{"title", "x", "y", {{name, "", 1, 1, true}, {"b", "", 2, 2, false}}};
  EXPECT_THAT(draw(plot, kPhone), HasSubstr(">" + name + "</text>"));
  plot.points[0].chosen = false;
  EXPECT_THAT(draw(plot, kPhone), Not(HasSubstr(">" + name + "</text>")));
}

TEST(Points, HaveALogarithmicAxisIfTimesDifferMuch) {
  const auto with = [](double most) {
    return draw(
        Points{"t",
               "x",
               "y",
               {{"a", "", 20, 1, false}, {"b", "", 30, 1, false}, {"c", "", most, 1, false}}},
        kScreen);
  };
  EXPECT_THAT(with(200),
              ::testing::AllOf(HasSubstr(">20<"), HasSubstr(">50<"), HasSubstr(">200<")));
  EXPECT_THAT(with(40), Not(HasSubstr(">200<")));
}

TEST(Points, StayInsideThePicture) {
  const Points plot{
      "title", "x", "y", {{"case 1", "", 1, 1, false}, {"case 22222222", "", 100, 100, false}}};
  for (const double width : {kScreen, kPhone}) {
    const std::string svg = draw(plot, width);
    const std::regex pattern("<circle cx=\"([^\"]*)\" cy=\"([^\"]*)\"");
    for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it) {
      EXPECT_GT(std::stod((*it)[1]), 30);
      EXPECT_LT(std::stod((*it)[1]), width - 20);
    }
    EXPECT_THAT(svg, HasSubstr("text-anchor=\"end\">case 2222"));  // no room on the right
  }
}

// The colours that the circles have.
std::set<std::string> colours_of(const Points& plot) {
  const std::string svg = draw(plot, kScreen);
  std::set<std::string> colours;
  const std::regex pattern("r=\"5.0\" fill=\"([^\"]*)\"");
  for (std::sregex_iterator it(svg.begin(), svg.end(), pattern), end; it != end; ++it)
    colours.insert((*it)[1]);
  return colours;
}

// A colour that two of many points share must mean something.
TEST(Points, HaveColoursOfTheirGroupsOrNone) {
  Points plot{"title", "x", "y", {}};
  for (int i = 0; i < 8; ++i)
    plot.points.push_back({"case " + std::to_string(i), "2 ranks", 5, 7.0 + i, false});
  EXPECT_EQ(colours_of(plot).size(), 8u);
  EXPECT_THAT(draw(plot, kScreen), Not(HasSubstr(">2 ranks<")));
  plot.points.push_back({"case 8", "2 ranks", 6, 7, false});
  EXPECT_EQ(colours_of(plot).size(), 1u);
  plot.points.push_back({"case 9", "4 ranks", 6, 8, false});
  EXPECT_EQ(colours_of(plot).size(), 2u);
  EXPECT_THAT(draw(plot, kScreen),
              ::testing::AllOf(HasSubstr(">2 ranks<"), HasSubstr(">4 ranks<")));
}

Lines lines_through(std::vector<std::pair<double, double>> points) {
  return {"title", "x", "y", false, {{"a curve", std::move(points), false}}, 0};
}

// The values 1 and its next number have no five multiples of a round number between them.
TEST(Lines, OfValuesThatDifferByRoundingAreDrawn) {
  EXPECT_EQ(count(draw(lines_through({{1, 1}, {2, std::nextafter(1, 2)}}), kScreen), "<polyline"),
            1u);
  EXPECT_EQ(count(draw(lines_through({{1e17, 3}, {1e17 + 16, 4}}), kScreen), "<polyline"), 1u);
}

TEST(Lines, LeaveOutInfiniteValues) {
  const std::string svg = draw(lines_through({{1, 2}, {2, INFINITY}, {3, NAN}, {4, 5}}), kScreen);
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, HasSubstr(">5</text>")) << "the axis ends at the largest finite value";
}

// Curves with the values 1, 2, ... of which the case 3 is important.
Lines many_lines(size_t count, double bound) {
  Lines plot{"title", "x", "y", false, {}, bound};
  for (size_t i = 1; i <= count; ++i) {
    const auto y = static_cast<double>(i);
    plot.curves.push_back({concat("case ", i), {{1, y}, {2, y}}, i == 3});
  }
  return plot;
}

TEST(Lines, OfManyCasesAreABandAndTheCasesThatMatter) {
  const std::string few = draw(many_lines(8, 0), kScreen);
  EXPECT_EQ(count(few, "<polyline"), 8u);
  EXPECT_EQ(count(few, "<polygon"), 0u);
  const std::string many = draw(many_lines(21, 25), kScreen);
  EXPECT_EQ(count(many, "<polyline"), 3u);  // two cases and the median
  EXPECT_EQ(count(many, "<polygon"), 1u);
  EXPECT_THAT(many,
              ::testing::AllOf(HasSubstr(">case 3<"),
                               HasSubstr(">case 21 (nearest to the bound)<"),
                               HasSubstr(">range of the other 19<")));
  const std::string above = draw(many_lines(21, 18.5), kScreen);
  EXPECT_THAT(above,
              ::testing::AllOf(HasSubstr(">case 19 (above the bound)<"),
                               HasSubstr(">case 21 (above the bound)<"),
                               Not(HasSubstr(">case 18")),
                               HasSubstr(">range of the other 17<")));
  EXPECT_THAT(draw(many_lines(21, 2), kScreen), HasSubstr(">range of the other 13<"));
  EXPECT_THAT(draw(many_lines(21, 0), kScreen), HasSubstr(">case 21<"));
}

// The median of the cases 1, 2, 4 to 20 is the 10th of them, 11.
TEST(Lines, ShowTheRangeAndTheMedianOfTheOthers) {
  Lines plot = many_lines(21, 0);
  const std::string all = draw(plot, kScreen);
  plot.curves = {{"median", {{1, 11}, {2, 11}}, false},
                 {"most", {{1, 21}}, false},
                 {"least", {{1, 1}}, false}};
  const std::string median = draw(plot, kScreen);
  const std::regex pattern("points=\"([^\"]*)\"");
  std::smatch found, expected;
  const std::string tail = all.substr(all.find("class=\"middle\""));
  ASSERT_TRUE(std::regex_search(tail, found, pattern));
  ASSERT_TRUE(std::regex_search(median, expected, pattern));
  EXPECT_EQ(found[1], expected[1]);
}

// One slow step must not make all other boxes too small to be read.
TEST(Boxes, CountValuesFarBeyondTheOthers) {
  std::vector<double> usual(99, 40), slow = usual;
  slow.push_back(2400);
  const std::string svg = draw(Boxes{"title", "ms", {{"a", usual}, {"b", slow}}}, kScreen);
  EXPECT_THAT(svg, HasSubstr("1 step of 2400 not shown"));
  EXPECT_THAT(svg, Not(HasSubstr(">2000<")));  // a tick of an axis that ends at 2400
  EXPECT_THAT(draw(Boxes{"title", "ms", {{"a", {40, 41}}, {"b", {50, 55}}}}, kScreen),
              Not(HasSubstr("not shown")));
}

TEST(Boxes, HaveNamesAboveThemIfTheyAreLong) {
  Boxes plot{"title", "ms", {{"a-name-of-20-letters", {1, 2}}}};
  const std::string beside = "text-anchor=\"end\">a-name", above = "text-anchor=\"start\">a-name";
  EXPECT_THAT(draw(plot, kScreen), HasSubstr(beside));
  EXPECT_THAT(draw(plot, kPhone), HasSubstr(above));
  plot.rows[0].first = "a-name";
  EXPECT_THAT(draw(plot, kPhone), HasSubstr(beside));
}

TEST(Titles, AreWrapped) {
  const std::string title = "a title of seven words, too long";
  Boxes plot{title + " " + title, "ms", {{"a", {1, 2}}}};
  EXPECT_EQ(count(draw(plot, kScreen), "class=\"title\""), 1u);
  EXPECT_EQ(count(draw(plot, kPhone), "class=\"title\""), 2u);
}

TEST(Bars, HatchOnlyTheLastPart) {
  Bars plot{"title", "MiB", {"known", "rest"}, {{"a", {1, 2}}, {"b", {3, 0}}}, 1, true};
  EXPECT_EQ(count(draw(plot, kPhone), "url(#hatch360)"), 2u);
  EXPECT_EQ(count(draw(plot, kScreen), "url(#hatch860)"), 2u);  // one bar and the legend
  plot.hatched = false;
  EXPECT_EQ(count(draw(plot, kScreen), "url(#hatch860)"), 0u);
}

}  // namespace
}  // namespace yoke::compare
