// A report may have dozens of curves that nearly coincide, and there are only a few colours that
// everybody can distinguish. Dashes as a second property were rejected: nobody can follow one of
// twenty dashed curves. A reader wants to know whether a case is near the bound, and which one, and
// what the others do. So such cases have curves, and a band with a median shows all others.

#include <algorithm>
#include <cmath>
#include <map>

#include "core/compare/comparison.hpp"
#include "core/compare/drawing.hpp"
#include "core/compare/svg.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

// Returns how many points a curve may have: about one for each pixel.
size_t most_points(const Frame& frame) {
  return static_cast<size_t>(frame.right - frame.left);
}

std::string polyline(const std::string& points, const std::string& look) {
  return "<polyline fill=\"none\" " + look + " points=\"" + points + "\"/>";
}

// Returns the points as coordinates. If there are too many, only the highest one of each group is
// drawn, so that peaks stay visible.
std::string coordinates(const std::vector<std::pair<double, double>>& points,
                        const Scale& x,
                        const Scale& y,
                        size_t most) {
  std::string out;
  const size_t stride = points.size() / most + 1;
  for (size_t i = 0; i < points.size(); i += stride) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(i + stride, points.size()));
    const auto top = std::max_element(
        begin, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (std::isfinite(top->second))
      out += string_printf("%.1f,%.1f ", x(top->first), y(top->second));
  }
  return out;
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
  return {least, most, 0, 0, plot.log};
}

double highest(const Curve& curve) {
  double most = -INFINITY;
  for (const auto& [x, y] : curve.points)
    if (std::isfinite(y)) most = std::max(most, y);
  return most;
}

// Selection is which curves of a plot are drawn as such.
struct Selection {
  std::vector<Curve> curves, others;
};

Selection select(const Lines& plot) {
  if (plot.curves.size() <= kColours) return {plot.curves, {}};
  std::vector<Curve> sorted = plot.curves;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Curve& a, const Curve& b) {
    return a.important != b.important ? a.important : highest(a) > highest(b);
  });
  Selection s;
  bool has_highest = false;
  for (Curve& curve : sorted) {
    const double top = highest(curve);
    const bool above = plot.bound > 0 && top > plot.bound;
    if (s.curves.size() < kColours && (curve.important || above || !has_highest)) {
      has_highest = has_highest || !curve.important;
      if (!curve.important && plot.bound > 0)
        curve.name += above ? " (above the bound)" : " (nearest to the bound)";
      s.curves.push_back(curve);
    } else {
      s.others.push_back(curve);
    }
  }
  return s;
}

// Band is the range and the median of several curves, for each x.
struct Band {
  std::vector<std::pair<double, double>> low, high, middle;
};

Band band_of(const std::vector<Curve>& curves) {
  std::map<double, std::vector<double>> values;
  for (const Curve& curve : curves)
    for (const auto& [x, y] : curve.points)
      if (std::isfinite(y)) values[x].push_back(y);
  Band band;
  for (const auto& [x, all] : values) {
    const auto [low, high] = std::minmax_element(all.begin(), all.end());
    band.low.emplace_back(x, *low);
    band.high.emplace_back(x, *high);
    band.middle.emplace_back(x, median(all));
  }
  return band;
}

std::string drawn(const Band& band, const Scale& x, const Scale& y, size_t most) {
  auto low = band.low;
  std::reverse(low.begin(), low.end());
  return "<polygon class=\"band\" points=\"" + coordinates(band.high, x, y, most) +
         coordinates(low, x, y, most) + "\"/>" +
         polyline(coordinates(band.middle, x, y, most), "class=\"middle\"");
}

}  // namespace

std::string draw(const Lines& plot, double width) {
  double first = INFINITY, last = -INFINITY;
  for (const Curve& curve : plot.curves) {
    for (const auto& [x, y] : curve.points) {
      first = std::min(first, x);
      last = std::max(last, x);
    }
  }
  if (!(first <= last)) {  // there are no points
    first = 0;
    last = 1;
  }
  const Selection shown = select(plot);
  Scale y = scale_of_y(plot);
  const std::vector<double> ticks = y.ticks();
  const std::vector<std::string> texts = tick_texts(ticks, plot.log);
  const Frame frame(width, plot.title, plot.y, width_of(texts));
  const double bottom = frame.top + kPlotHeight;
  const size_t most = most_points(frame);
  const Scale x{first, last, frame.left, frame.right};
  y.from = bottom;
  y.to = frame.top;
  std::vector<Entry> entries;
  std::string curves;
  if (!shown.others.empty()) curves = drawn(band_of(shown.others), x, y, most);
  for (size_t i = 0; i < shown.curves.size(); ++i) {
    entries.push_back({shown.curves[i].name, fill_of(i)});
    // Curves often overlap, so later ones are thinner, and all of them remain visible.
    const double thickness = std::max(1.2, 5 - 1.2 * static_cast<double>(i));
    curves += polyline(
        coordinates(shown.curves[i].points, x, y, most),
        string_printf("stroke-width=\"%.1f\" stroke=\"%s\"", thickness, colour_of(i).c_str()));
  }
  if (!shown.others.empty()) {
    entries.push_back({concat("range of the other ", shown.others.size()), "class=\"band\""});
    entries.push_back({"their median", "class=\"middle\""});
  }
  const Legend names = legend(frame, entries, bottom + 56);
  std::string out = frame.open(bottom + 46 + names.height) + y_grid(frame, y, ticks, texts) +
                    x_axis(frame, x, bottom, plot.x) + curves;
  if (plot.bound > 0) {
    out += line(frame.left, y(plot.bound), frame.right, y(plot.bound), "class=\"bound\"") +
           label(frame.right, y(plot.bound) - 5, "end", string_printf("bound %.0e", plot.bound));
  }
  return out + names.drawing + "</svg>\n";
}

}  // namespace yoke::compare
