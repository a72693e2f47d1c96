// The parts of a report's plots, as text in the SVG language. Coordinates are pixels of a picture
// with a fixed width, which the browser scales. Does not need LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke::compare {

constexpr double kPlotHeight = 240;
constexpr double kLetter = 7.2;  // width of a letter, for layout
constexpr double kLine = 14;     // height of a line of text

std::string label(double x, double y, const char* anchor, const std::string& text);
// `look` is attributes, such as class="axis".
std::string line(double x1, double y1, double x2, double y2, const std::string& look);
std::string rectangle(double x, double y, double width, double height, const std::string& look);
std::string circle(double x, double y, double radius, const std::string& look);
// Returns fill="..." with a colour of the palette.
std::string fill_of(size_t index);

// Returns the width of the widest text.
double width_of(const std::vector<std::string>& texts);

// Frame is where a plot is in its picture.
struct Frame {
  double width;                    // width of the picture
  double left, right, top;         // edges of the plot
  std::vector<std::string> title;  // lines of the title
  std::string y;                   // label of the y axis, above the plot; "" = none

  // Leaves room for texts of the width `margin` on the left. Wraps the title.
  Frame(double picture_width, const std::string& title_text, std::string y_label, double margin);
  // Returns the start of a picture with this height, with the title and the label of the y axis.
  std::string open(double height) const;
};

// Scale maps values, linearly or logarithmically, to coordinates in [from, to].
struct Scale {
  double least, most, from, to;
  bool log = false;

  double operator()(double value) const;
  // Returns round values for tick marks: about six powers of ten, or about five multiples of 1, 2
  // or 5 times a power of ten.
  std::vector<double> ticks() const;

 private:
  std::vector<double> fine_ticks() const;
};

// Returns the line of the x axis with its ticks and its name, which take 38 pixels.
std::string x_axis(const Frame& frame, const Scale& x, double bottom, const std::string& name);
// Returns a horizontal line for each value, and its text on the left.
std::string y_grid(const Frame& frame,
                   const Scale& y,
                   const std::vector<double>& values,
                   const std::vector<std::string>& texts);
// Returns the texts of the ticks of a y axis.
std::vector<std::string> tick_texts(const std::vector<double>& values, bool log);

struct Entry {
  std::string name, look;  // text and attributes of the small rectangle beside it
};
struct Legend {
  std::string drawing;
  double height = 0;  // 18 pixels for each row of names
};
// Draws the names from the height y on.
Legend legend(const Frame& frame, const std::vector<Entry>& entries, double y);

}  // namespace yoke::compare
