// A report needs only four kinds of plots, and a plotting library would have to run in the
// browser. So the plots are drawn here, as text in the SVG language. Coordinates are pixels of a
// fixed picture, which the browser scales.

#include "core/compare/svg.hpp"

#include <algorithm>
#include <cmath>

#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kWidth = 860, kLeft = 150, kRight = 840, kTop = 34;
constexpr double kPlotHeight = 240, kRow = 30;
constexpr double kLetter = 7.2;  // width of a letter, for layout
constexpr double kLine = 14;     // height of a line of text
constexpr size_t kMostPoints = 1000;

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return string_printf("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) +
         escaped(text) + "</text>";
}

std::string open(const std::string& title, double height) {
  return string_printf(
             "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", kWidth, height) +
         escaped(title) + "\"><text class=\"title\" x=\"0\" y=\"16\">" + escaped(title) + "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return string_printf(
      "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", kind, x1, y1, x2, y2);
}

std::string rectangle(double x, double y, double width, double height, const std::string& fill) {
  return string_printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"",
                       x,
                       y,
                       std::max(width, 0.0),
                       height) +
         fill + "\"/>";
}

// Scale maps values, linearly or logarithmically, to coordinates in [from, to].
struct Scale {
  double least, most, from, to;
  bool log = false;

  double operator()(double value) const {
    const double v = log ? std::log10(std::max(value, least)) : value;
    const double a = log ? std::log10(least) : least, b = log ? std::log10(most) : most;
    return b > a ? from + (v - a) / (b - a) * (to - from) : (from + to) / 2;
  }
  // Returns 1, 2 and 5 times powers of ten.
  std::vector<double> fine_ticks() const {
    std::vector<double> values;
    for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10)
      for (const double v : {power, 2 * power, 5 * power})
        if (v >= least && v <= most) values.push_back(v);
    return values;
  }
  // Returns round values for tick marks: about six powers of ten, or about five multiples of 1, 2
  // or 5 times a power of ten.
  std::vector<double> ticks() const {
    std::vector<double> values;
    if (log) {
      const auto first = static_cast<int>(std::ceil(std::log10(least)));
      const auto last = static_cast<int>(std::floor(std::log10(most)));
      const int stride = std::max(1, (last - first) / 6);
      if (last - first < 2) return fine_ticks();
      for (int e = first; e <= last; e += stride) values.push_back(std::pow(10, e));
      return values;
    }
    const double raw = (most - least) / 5;
    // Values that differ only by rounding have no round values between them.
    if (!(raw > 1e-9 * std::max(std::abs(least), std::abs(most)))) return {least};
    const double power = std::pow(10, std::floor(std::log10(raw)));
    const double step = power * (raw / power > 5   ? 10
                                 : raw / power > 2 ? 5
                                 : raw / power > 1 ? 2
                                                   : 1);
    for (double v = std::ceil(least / step) * step; v <= most * (1 + 1e-9); v += step)
      values.push_back(std::abs(v) < step * 1e-9 ? 0 : v);
    return values;
  }
};

struct Legend {
  std::string drawing;
  double height;  // 18 pixels for each row of names
};

// Draws the names from the height y on. last_hatched: whether the last name is of hatched parts.
Legend legend(const std::vector<std::string>& names, double y, bool last_hatched = false) {
  Legend out{"", 18};
  double x = kLeft;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = 34 + kLetter * static_cast<double>(names[i].size());
    if (x + width > kWidth && x > kLeft) {
      x = kLeft;
      y += 18;
      out.height += 18;
    }
    const bool hatched = last_hatched && i + 1 == names.size();
    out.drawing += rectangle(x, y - 9, 14, 10, hatched ? "url(#h)" : colour_of(i)) +
                   label(x + 19, y, "start", names[i]);
    x += width;
  }
  return out;
}

std::string polyline(const Curve& curve, const Scale& x, const Scale& y, size_t index) {
  std::string points;
  const size_t stride = curve.points.size() / kMostPoints + 1;
  for (size_t i = 0; i < curve.points.size(); i += stride) {
    // If there are too many points, only the highest one of each group is drawn, so that peaks stay
    // visible.
    const auto end = curve.points.begin() +
                     static_cast<std::ptrdiff_t>(std::min(i + stride, curve.points.size()));
    const auto top =
        std::max_element(curve.points.begin() + static_cast<std::ptrdiff_t>(i),
                         end,
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (std::isfinite(top->second))
      points += string_printf("%.1f,%.1f ", x(top->first), y(top->second));
  }
  // Curves often overlap, so later ones are thinner, and all of them remain visible.
  const double width = std::max(1.2, 5 - 1.2 * static_cast<double>(index));
  return string_printf("<polyline fill=\"none\" stroke-width=\"%.1f\" stroke=\"%s\" points=\"",
                       width,
                       colour_of(index).c_str()) +
         points + "\"/>";
}

Scale scale_of_y(const Lines& plot) {
  double least = INFINITY, most = -INFINITY;
  for (const Curve& curve : plot.curves) {
    for (const auto& [x, y] : curve.points) {
      if (!std::isfinite(y) || (plot.log && y <= 0)) continue;
      least = std::min(least, y);
      most = std::max(most, y);
    }
  }
  if (plot.bound > 0) {
    least = std::min(least, plot.bound);
    most = std::max(most, plot.bound);
  }
  if (!(least <= most)) {  // there are no values
    least = plot.log ? 1e-9 : 0;
    most = 1;
  }
  if (plot.log) {
    least /= 3;
    most *= 3;
  }
  return {least, most, kTop + kPlotHeight, kTop, plot.log};
}

std::string x_axis(const Scale& x, double bottom, const std::string& name) {
  std::string out = line(kLeft, bottom, kRight, bottom, "axis");
  for (const double v : x.ticks()) {
    out += line(x(v), bottom, x(v), bottom + 4, "axis") +
           label(x(v), bottom + 17, "middle", string_printf("%.4g", v));
  }
  return out + label((kLeft + kRight) / 2, bottom + 34, "middle", name);
}

double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto i = static_cast<size_t>(at);
  const size_t next = std::min(i + 1, sorted.size() - 1);
  return sorted[i] + (at - static_cast<double>(i)) * (sorted[next] - sorted[i]);
}

// Pattern of a part that is not known in detail.
constexpr char kHatch[] =
    "<defs><pattern id=\"h\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"2\" height=\"6\"/>"
    "</pattern></defs>";

std::string circle(double x, double y, double radius, const std::string& look) {
  return string_printf("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" ", x, y, radius) + look + "/>";
}

// Places names beside points so that they cover neither each other nor a point.
class NamePlaces {
 public:
  // Keeps the place of a point free.
  void add_point(double x, double y) { taken_.push_back({x - 6, y, 12}); }
  // Returns the name at the first free place near the point; "" if there is none.
  std::string name_beside(double x, double y, const std::string& name) {
    const double width = kLetter * static_cast<double>(name.size());
    for (const double shift : {0.0, -1.0, 1.0, -2.0, 2.0}) {
      for (const bool left : {false, true}) {
        const Place place{left ? x - 12 - width : x + 12, y + shift * kLine, width};
        if (!is_free(place)) continue;
        taken_.push_back(place);
        return label(left ? x - 12 : x + 12, place.y + 4, left ? "end" : "start", name);
      }
    }
    return "";
  }

 private:
  struct Place {
    double x, y, width;
    bool meets(const Place& other) const {
      return x < other.x + other.width && other.x < x + width && std::abs(y - other.y) < kLine;
    }
  };
  bool is_free(const Place& place) const {
    return place.x >= kLeft && place.x + place.width <= kWidth && place.y >= kTop &&
           place.y <= kTop + kPlotHeight - kLine / 2 &&
           std::none_of(
               taken_.begin(), taken_.end(), [&](const Place& t) { return t.meets(place); });
  }
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
  constexpr const char* kColours[] = {
      "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c8c00", "#7f7f7f"};
  return kColours[index % std::size(kColours)];
}

std::string draw(const Lines& plot) {
  std::vector<std::string> names;
  double first = INFINITY, last = -INFINITY;
  for (const Curve& curve : plot.curves) {
    names.push_back(curve.name);
    for (const auto& [x, y] : curve.points) {
      first = std::min(first, x);
      last = std::max(last, x);
    }
  }
  if (!(first <= last)) {  // there are no points
    first = 0;
    last = 1;
  }
  const Scale x{first, last, kLeft, kRight}, y = scale_of_y(plot);
  const double bottom = kTop + kPlotHeight;
  const Legend curves = legend(names, bottom + 56);
  std::string out = open(plot.title, bottom + 46 + curves.height);
  for (const double v : y.ticks()) {
    out += line(kLeft, y(v), kRight, y(v), "grid") +
           label(kLeft - 8, y(v) + 4, "end", string_printf(plot.log ? "%.0e" : "%.4g", v));
  }
  out += x_axis(x, bottom, plot.x) + label(0, kTop + 14, "start", plot.y);
  for (size_t i = 0; i < plot.curves.size(); ++i) out += polyline(plot.curves[i], x, y, i);
  if (plot.bound > 0) {
    out += line(kLeft, y(plot.bound), kRight, y(plot.bound), "bound") +
           label(kRight, y(plot.bound) - 5, "end", string_printf("bound %.0e", plot.bound));
  }
  return out + curves.drawing + "</svg>\n";
}

std::string draw(const Points& plot) {
  Scale x{INFINITY, -INFINITY, kLeft, kRight}, y{INFINITY, -INFINITY, kTop + kPlotHeight, kTop};
  for (const Points::Point& p : plot.points) {
    x.least = std::fmin(x.least, std::fmin(p.x, p.least_x));
    x.most = std::fmax(x.most, std::fmax(p.x, p.most_x));
    y.least = std::min(y.least, p.y);
    y.most = std::max(y.most, p.y);
  }
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
  const double bottom = kTop + kPlotHeight;
  std::string out = open(plot.title, bottom + 44);
  for (const double v : y.ticks()) {
    out += line(kLeft, y(v), kRight, y(v), "grid") +
           label(kLeft - 8, y(v) + 4, "end", string_printf("%.4g", v));
  }
  out += x_axis(x, bottom, plot.x + (x.log ? ", logarithmic" : "")) +
         label(0, kTop + 14, "start", plot.y);
  NamePlaces places;
  for (size_t i = 0; i < plot.points.size(); ++i) {
    const Points::Point& p = plot.points[i];
    if (!std::isnan(p.least_x)) out += line(x(p.least_x), y(p.y), x(p.most_x), y(p.y), "range");
    out += "<g><title>" + escaped(p.name) + "</title>" +
           circle(x(p.x), y(p.y), 5, "fill=\"" + colour_of(i) + "\"") + "</g>";
    if (p.chosen) out += circle(x(p.x), y(p.y), 9, "class=\"ring\"");
    places.add_point(x(p.x), y(p.y));
  }
  for (const bool chosen : {true, false})
    for (const Points::Point& p : plot.points)
      if (p.chosen == chosen) out += places.name_beside(x(p.x), y(p.y), p.name);
  return out + "</svg>\n";
}

std::string draw(const Boxes& plot) {
  const double most = shown_limit(plot);
  const Scale x{0, most, kLeft, kRight};
  const double bottom = kTop + kRow * static_cast<double>(plot.rows.size());
  std::string out = open(plot.title, bottom + 44);
  for (const double v : x.ticks()) out += line(x(v), kTop, x(v), bottom, "grid");
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    std::vector<double> values = plot.rows[i].second;
    const double middle = kTop + kRow * (static_cast<double>(i) + 0.5);
    out += label(kLeft - 8, middle + 4, "end", plot.rows[i].first);
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    const auto beyond = std::upper_bound(values.begin(), values.end(), most);
    if (beyond != values.end()) {
      const auto count = values.end() - beyond;
      out += label(kRight,
                   middle - 9,
                   "end",
                   concat(count, count == 1 ? " step of " : " steps of up to ") +
                       string_printf("%.4g", values.back()) + " not shown");
    }
    const double last_shown = beyond == values.begin() ? most : *std::prev(beyond);
    const double low = x(quantile(values, 0.25)), high = x(quantile(values, 0.75));
    out +=
        line(x(values.front()), middle, x(last_shown), middle, "axis") +
        rectangle(low, middle - 8, high - low, 16, colour_of(i)) +
        line(
            x(quantile(values, 0.5)), middle - 11, x(quantile(values, 0.5)), middle + 11, "median");
  }
  return out + x_axis(x, bottom, plot.x) + "</svg>\n";
}

std::string draw(const Bars& plot) {
  double most = 0;
  for (const auto& [name, values] : plot.rows) {
    double sum = 0;
    for (const double v : values) sum += std::max(v, 0.0) / plot.divisor;
    most = std::max(most, sum);
  }
  const Scale x{0, most, kLeft, kRight};
  const double bottom = kTop + kRow * static_cast<double>(plot.rows.size());
  const Legend parts = legend(plot.parts, bottom + 56, plot.hatched);
  std::string out = open(plot.title, bottom + 46 + parts.height);
  if (plot.hatched) out += kHatch;
  for (const double v : x.ticks()) out += line(x(v), kTop, x(v), bottom, "grid");
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    const double top = kTop + kRow * static_cast<double>(i) + 6;
    out += label(kLeft - 8, top + 13, "end", plot.rows[i].first);
    double sum = 0;
    for (size_t p = 0; p < plot.rows[i].second.size(); ++p) {
      const double value = std::max(plot.rows[i].second[p], 0.0) / plot.divisor;
      const bool hatched = plot.hatched && p + 1 == plot.parts.size();
      if (value > 0)
        out += rectangle(
            x(sum), top, x(sum + value) - x(sum), kRow - 12, hatched ? "url(#h)" : colour_of(p));
      sum += value;
    }
  }
  return out + x_axis(x, bottom, plot.unit) + parts.drawing + "</svg>\n";
}

}  // namespace yoke::compare
