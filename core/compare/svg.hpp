// Draws the plots of a report as inline SVG. Does not need LibTorch. Each plot is drawn twice: text
// of 12 pixels would be too small if a telephone showed the picture for a screen.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace yoke::compare {

constexpr double kScreen = 860, kPhone = 360;  // widths of pictures, in pixels

// Returns the text with HTML's special characters escaped.
std::string escaped(const std::string& text);

constexpr size_t kColours = 8;

// Returns a colour of the palette; after the last colour it starts again. The colours are legible
// on white and on black and can be distinguished by colour-blind people.
std::string colour_of(size_t index);

struct Curve {
  std::string name;
  // Sorted by x. Values that are not finite are left out.
  std::vector<std::pair<double, double>> points;
  bool important = false;  // drawn as a curve of its own even among many
};
// Lines is a plot of curves. If there are more curves than colours, only some have a curve of their
// own: the important ones, and those above the bound or else the highest one. A band and a median
// show the others.
struct Lines {
  std::string title;
  std::string x, y;  // labels of the axes
  bool log = false;  // logarithmic y axis; values of 0 and below are drawn at the bottom
  std::vector<Curve> curves;
  double bound = 0;  // y of a dashed line; 0 = none
};
std::string draw(const Lines& plot, double width);

// Points is a plot of named points. A name is beside its point if there is room, and those of
// chosen points come first; all names are shown when the mouse rests on a point. The x axis is
// logarithmic if its values differ much. If there are several groups, each has a colour.
struct Points {
  struct Point {
    std::string name, group;
    double x = 0, y = 0;
    bool chosen = false;                 // drawn with a ring around it
    double least_x = NAN, most_x = NAN;  // range of x, drawn as a line; NaN = none
  };
  std::string title;
  std::string x, y;  // labels of the axes
  std::vector<Point> points;
};
std::string draw(const Points& plot, double width);

// Boxes is a box plot. The names of its rows, like those of Bars, are above the rows if they are
// too wide to be beside them. Each row shows the range, the middle half and the median of its
// values. Few values far beyond all others are not drawn, but counted at the end of their row.
struct Boxes {
  std::string title;
  std::string x;                                                  // label of the axis
  std::vector<std::pair<std::string, std::vector<double>>> rows;  // name and values
};
std::string draw(const Boxes& plot, double width);

// Bars is a horizontal stacked bar chart: each row shows its parts side by side. The last part is
// hatched if `hatched` is true.
struct Bars {
  std::string title;
  std::string unit;                                               // label of the axis
  std::vector<std::string> parts;                                 // names of the parts
  std::vector<std::pair<std::string, std::vector<double>>> rows;  // name, and a value for each part
  double divisor = 1;  // divisor that converts the values to the unit
  bool hatched = false;
};
std::string draw(const Bars& plot, double width);

}  // namespace yoke::compare
