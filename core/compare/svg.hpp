// The few plots of a report, as inline SVG. Does not need LibTorch.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace yoke::compare {

// What user text must become inside HTML.
std::string escaped(const std::string& text);

// Of the palette, by index, repeated; legible on white and on black, and for the colour-blind.
std::string colour_of(size_t index);

struct Curve {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x ascending; y that is NaN is left out
};
struct Lines {
  std::string title, x, y;  // of the axes
  bool log = false;         // y; values of 0 and below are drawn at the bottom
  std::vector<Curve> curves;
  double bound = 0;  // a dashed line; 0 = none
};
std::string draw(const Lines& plot);

// A row each, with the range, the middle half and the median of its values.
struct Boxes {
  std::string title, x;
  std::vector<std::pair<std::string, std::vector<double>>> rows;
};
std::string draw(const Boxes& plot);

// A row each, with parts of the same kinds side by side.
struct Bars {
  std::string title, unit;
  std::vector<std::string> parts;
  std::vector<std::pair<std::string, std::vector<double>>> rows;  // a value for each part
  double divisor = 1;                                             // of the values, for the axis
};
std::string draw(const Bars& plot);

}  // namespace yoke::compare
