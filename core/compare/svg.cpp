// A report needs only four kinds of plots, and a plotting library would have to run in the
// browser. So the plots are drawn here, as text in the SVG language. Curves are in svg_lines.cpp.

#include "core/compare/svg.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/compare/drawing.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<size_t>(at);
  const size_t next = std::min(i + 1, sorted.size() - 1);
  return sorted[i] + (at - static_cast<double>(i)) * (sorted[next] - sorted[i]);
}

// Returns the pattern of a part that is not known in detail. An identifier must be unique in the
// report, so it contains the width of the picture.
std::string hatch(double width) {
  return string_printf("<defs><pattern id=\"hatch%.0f\"", width) +
         " width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
         "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"2\" height=\"6\"/>"
         "</pattern></defs>";
}

// Places names beside points so that they cover neither each other nor a point.
class NamePlaces {
 public:
  explicit NamePlaces(const Frame& frame) : frame_(frame) {}
  // Keeps the place of a point free.
  void add_point(double x, double y) { taken_.push_back({x - 6, y, 12}); }
  // Returns the name at the first free place near the point; "" if there is none. A name that is
  // some lines away would seem to belong to another point, so only chosen points have such a name,
  // with a line to it. If all places are taken, the name of a chosen point covers something.
  std::string name_beside(double x, double y, const Points::Point& point) {
    const double width = kLetter * static_cast<double>(point.name.size());
    const int most = point.chosen ? 13 : 3;
    for (int i = 0; i < most; ++i) {
      const int shift = (i + 1) / 2 * (i % 2 == 0 ? 1 : -1);  // 0, -1, 1, -2, 2, ...
      for (const bool left : {false, true}) {
        const Place place{left ? x - 12 - width : x + 12, y + shift * kLine, width};
        if (!is_free(place)) continue;
        taken_.push_back(place);
        const double edge = left ? x - 12 : x + 12;
        return (std::abs(shift) < 2 ? "" : line(x, y, edge, place.y, "class=\"range\"")) +
               label(edge, place.y + 4, left ? "end" : "start", point.name);
      }
    }
    if (!point.chosen) return "";
    const bool left = x > (frame_.left + frame_.right) / 2;
    taken_.push_back({left ? x - 12 - width : x + 12, y, width});
    return label(left ? x - 12 : x + 12, y + 4, left ? "end" : "start", point.name);
  }

 private:
  struct Place {
    double x, y, width;
    bool meets(const Place& other) const {
      return x < other.x + other.width && other.x < x + width && std::abs(y - other.y) < kLine;
    }
  };
  bool is_free(const Place& place) const {
    return place.x >= frame_.left && place.x + place.width <= frame_.width &&
           place.y >= frame_.top && place.y <= frame_.top + kPlotHeight - kLine / 2 &&
           std::none_of(
               taken_.begin(), taken_.end(), [&](const Place& t) { return t.meets(place); });
  }
  const Frame& frame_;
  std::vector<Place> taken_;
};

// Returns where the axis of a box plot ends: at the largest value or, if that is much larger than
// 95 % of the values of every row, somewhat above those.
double shown_limit(const Boxes& plot) {
  double most = 0, usual = 0;
  for (const auto& [name, row] : plot.rows) {
    if (row.empty()) continue;
    std::vector<double> values = row;
    std::sort(values.begin(), values.end());
    most = std::max(most, values.back());
    usual = std::max(usual, quantile(values, 0.95));
  }
  constexpr double kMuch = 1.5, kAbove = 1.2;
  return most > kMuch * usual ? kAbove * usual : most;
}

// Rows is where the rows of a plot and their names are.
struct Rows {
  bool above;     // true if names are above the rows
  double margin;  // width of the names beside the rows
  double height;  // height of a row with its name

  template <class T>
  Rows(const std::vector<std::pair<std::string, T>>& rows, double width) {
    constexpr double kMost = 0.36;  // share of the picture that names may take
    std::vector<std::string> names;
    for (const auto& row : rows) names.push_back(row.first);
    margin = width_of(names);
    above = margin > kMost * width;
    if (above) margin = 0;
    height = above ? 44 : 30;
  }
  // Returns the middle of the bar of row i.
  double middle(const Frame& frame, size_t i) const {
    return frame.top + height * static_cast<double>(i) + height - 15;
  }
  double bottom(const Frame& frame, size_t count) const {
    return frame.top + height * static_cast<double>(count);
  }
  std::string name(const Frame& frame, double middle, const std::string& text) const {
    return above ? label(frame.left, middle - 14, "start", text)
                 : label(frame.left - 8, middle + 4, "end", text);
  }
};

// Returns the names of the groups, in the order of the points; "" is none.
std::vector<std::string> groups_of(const Points& plot) {
  std::vector<std::string> groups;
  for (const Points::Point& p : plot.points)
    if (!p.group.empty() && std::count(groups.begin(), groups.end(), p.group) == 0)
      groups.push_back(p.group);
  return groups;
}

// Widens the scales, so that no point is at an edge.
void add_margins(Scale& x, Scale& y) {
  constexpr double kWide = 3;  // ratio of times from which the axis is logarithmic
  x.log = x.least > 0 && x.most > kWide * x.least;
  if (x.log) {
    x.least /= 1.1;
    x.most *= 1.1;
  }
  for (Scale* scale : {&x, &y}) {
    if (scale->log) continue;
    const double margin = std::max(0.08 * (scale->most - scale->least), 0.02 * scale->most);
    scale->least -= margin;
    scale->most += margin;
  }
}

// Returns the points with their ranges, their rings and, where there is room, their names.
std::string drawn(const Points& plot,
                  const Frame& frame,
                  const Scale& x,
                  const Scale& y,
                  const std::vector<std::string>& groups) {
  NamePlaces places(frame);
  std::string out;
  for (size_t i = 0; i < plot.points.size(); ++i) {
    const Points::Point& p = plot.points[i];
    const auto group = std::find(groups.begin(), groups.end(), p.group) - groups.begin();
    const size_t colour = groups.size() > 1                ? static_cast<size_t>(group)
                          : plot.points.size() <= kColours ? i
                                                           : 0;
    if (!std::isnan(p.least_x))
      out += line(x(p.least_x), y(p.y), x(p.most_x), y(p.y), "class=\"range\"");
    out += "<g><title>" + escaped(p.name) + "</title>" +
           circle(x(p.x), y(p.y), 5, fill_of(colour)) + "</g>";
    if (p.chosen) out += circle(x(p.x), y(p.y), 9, "class=\"ring\"");
    places.add_point(x(p.x), y(p.y));
  }
  for (const bool chosen : {true, false})
    for (const Points::Point& p : plot.points)
      if (p.chosen == chosen) out += places.name_beside(x(p.x), y(p.y), p);
  return out;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string colour_of(size_t index) {
  constexpr const char* kPalette[kColours] = {
      "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c00", "#7f7f7f"};
  return kPalette[index % kColours];
}

std::string draw(const Points& plot, double width) {
  Scale x{INFINITY, -INFINITY, 0, 0}, y{INFINITY, -INFINITY, 0, 0};
  for (const Points::Point& p : plot.points) {
    x.least = std::fmin(x.least, std::fmin(p.x, p.least_x));
    x.most = std::fmax(x.most, std::fmax(p.x, p.most_x));
    y.least = std::min(y.least, p.y);
    y.most = std::max(y.most, p.y);
  }
  add_margins(x, y);
  const std::vector<double> ticks = y.ticks();
  const std::vector<std::string> texts = tick_texts(ticks, false);
  const Frame frame(width, plot.title, plot.y, width_of(texts));
  const double bottom = frame.top + kPlotHeight;
  x.from = frame.left;
  x.to = frame.right;
  y.from = bottom;
  y.to = frame.top;
  const std::vector<std::string> groups = groups_of(plot);
  std::vector<Entry> entries;
  for (size_t i = 0; i < groups.size() && groups.size() > 1; ++i)
    entries.push_back({groups[i], fill_of(i)});
  const Legend names = legend(frame, entries, bottom + 56);
  return frame.open(bottom + 44 + (entries.empty() ? 0 : names.height)) +
         y_grid(frame, y, ticks, texts) +
         x_axis(frame, x, bottom, plot.x + (x.log ? ", logarithmic" : "")) +
         drawn(plot, frame, x, y, groups) + names.drawing + "</svg>\n";
}

std::string draw(const Boxes& plot, double width) {
  const double most = shown_limit(plot);
  const Rows rows(plot.rows, width);
  const Frame frame(width, plot.title, "", rows.margin);
  const Scale x{0, most, frame.left, frame.right};
  const double bottom = rows.bottom(frame, plot.rows.size());
  std::string out = frame.open(bottom + 44);
  for (const double v : x.ticks()) out += line(x(v), frame.top, x(v), bottom, "class=\"grid\"");
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    std::vector<double> values = plot.rows[i].second;
    const double middle = rows.middle(frame, i);
    out += rows.name(frame, middle, plot.rows[i].first);
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    const auto beyond = std::upper_bound(values.begin(), values.end(), most);
    if (beyond != values.end()) {
      const auto count = values.end() - beyond;
      out += label(frame.right,
                   middle - (rows.above ? 14 : 9),
                   "end",
                   concat(count, count == 1 ? " step of " : " steps of up to ") +
                       string_printf("%.4g", values.back()) + " not shown");
    }
    const double last_shown = beyond == values.begin() ? most : *std::prev(beyond);
    const double low = x(quantile(values, 0.25)), high = x(quantile(values, 0.75));
    const double half = x(quantile(values, 0.5));
    const std::string fill = fill_of(plot.rows.size() <= kColours ? i : 0);
    out += line(x(values.front()), middle, x(last_shown), middle, "class=\"axis\"") +
           rectangle(low, middle - 8, high - low, 16, fill) +
           line(half, middle - 11, half, middle + 11, "class=\"median\"");
  }
  return out + x_axis(frame, x, bottom, plot.x) + "</svg>\n";
}

std::string draw(const Bars& plot, double width) {
  double most = 0;
  for (const auto& [name, values] : plot.rows) {
    double sum = 0;
    for (const double v : values) sum += std::max(v, 0.0) / plot.divisor;
    most = std::max(most, sum);
  }
  const Rows rows(plot.rows, width);
  const Frame frame(width, plot.title, "", rows.margin);
  const Scale x{0, most, frame.left, frame.right};
  const double bottom = rows.bottom(frame, plot.rows.size());
  std::vector<Entry> entries;
  for (size_t p = 0; p < plot.parts.size(); ++p) entries.push_back({plot.parts[p], fill_of(p)});
  if (plot.hatched) entries.back().look = string_printf("fill=\"url(#hatch%.0f)\"", width);
  const Legend parts = legend(frame, entries, bottom + 56);
  std::string out = frame.open(bottom + 46 + parts.height);
  if (plot.hatched) out += hatch(width);
  for (const double v : x.ticks()) out += line(x(v), frame.top, x(v), bottom, "class=\"grid\"");
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    const double middle = rows.middle(frame, i);
    out += rows.name(frame, middle, plot.rows[i].first);
    double sum = 0;
    for (size_t p = 0; p < plot.rows[i].second.size(); ++p) {
      const double value = std::max(plot.rows[i].second[p], 0.0) / plot.divisor;
      if (value > 0)
        out += rectangle(x(sum), middle - 9, x(sum + value) - x(sum), 18, entries[p].look);
      sum += value;
    }
  }
  return out + x_axis(frame, x, bottom, plot.unit) + parts.drawing + "</svg>\n";
}

}  // namespace yoke::compare
