// Draws the plots of a report as inline SVG. Does not need LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace yoke::compare {

// Returns the text with HTML's special characters escaped.
std::string escaped(const std::string& text);

// Returns a colour of the palette; after the last colour it starts again. The colours are legible
// on white and on black and can be distinguished by colour-blind people.
std::string colour_of(size_t index);

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // sorted by x; points with y = NaN are left out
};
// Lines is a plot of curves.
struct Lines {
  std::string title;
  std::string x, y;  // labels of the axes
  bool log = false;  // logarithmic y axis; values of 0 and below are drawn at the bottom
  std::vector<Curve> curves;
  double bound = 0;  // y of a dashed line; 0 = none
};
std::string draw(const Lines& plot);

// Boxes is a box plot: each row shows the range, the middle half and the median of its values.
struct Boxes {
  std::string title;
  std::string x;                                                  // label of the axis
  std::vector<std::pair<std::string, std::vector<double>>> rows;  // name and values
};
std::string draw(const Boxes& plot);

// Bars is a horizontal stacked bar chart: each row shows its parts side by side.
struct Bars {
  std::string title;
  std::string unit;                                               // label of the axis
  std::vector<std::string> parts;                                 // names of the parts
  std::vector<std::pair<std::string, std::vector<double>>> rows;  // name, and a value for each part
  double divisor = 1;  // divisor that converts the values to the unit
};
std::string draw(const Bars& plot);

}  // namespace yoke::compare
