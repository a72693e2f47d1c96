#include "core/compare/drawing.hpp"

#include <algorithm>
#include <cmath>

#include "core/compare/svg.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr double kTitleLine = 17, kTitleLetter = 8;  // size of a bold letter

// Returns the text as lines of up to `most` letters. A longer word has a line for itself.
std::vector<std::string> wrapped(const std::string& text, size_t most) {
  std::vector<std::string> lines = {""};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::string& last = lines.back();
    if (last.empty())
      last = word;
    else if (last.size() + 1 + word.size() <= most)
      last += " " + word;
    else
      lines.push_back(word);
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return string_printf("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) +
         escaped(text) + "</text>";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& look) {
  return string_printf("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" ", x1, y1, x2, y2) +
         look + "/>";
}

std::string rectangle(double x, double y, double width, double height, const std::string& look) {
  return string_printf("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" ",
                       x,
                       y,
                       std::max(width, 0.0),
                       height) +
         look + "/>";
}

std::string circle(double x, double y, double radius, const std::string& look) {
  return string_printf("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" ", x, y, radius) + look + "/>";
}

std::string fill_of(size_t index) {
  return "fill=\"" + colour_of(index) + "\"";
}

double width_of(const std::vector<std::string>& texts) {
  size_t letters = 0;
  for (const std::string& text : texts) letters = std::max(letters, text.size());
  return kLetter * static_cast<double>(letters);
}

Frame::Frame(double picture_width,
             const std::string& title_text,
             std::string y_label,
             double margin)
    : width(picture_width),
      left(margin + 10),
      right(picture_width - 20),
      title(wrapped(title_text, static_cast<size_t>(picture_width / kTitleLetter))),
      y(std::move(y_label)) {
  top = 17 + kTitleLine * static_cast<double>(title.size()) + (y.empty() ? 0 : 20);
}

std::string Frame::open(double height) const {
  std::string all;
  for (const std::string& text : title) all += (all.empty() ? "" : " ") + text;
  std::string out =
      string_printf("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", width, height) +
      escaped(all) + "\">";
  double at = 16;
  for (const std::string& text : title) {
    out +=
        string_printf("<text class=\"title\" x=\"0\" y=\"%.0f\">", at) + escaped(text) + "</text>";
    at += kTitleLine;
  }
  return out + (y.empty() ? "" : label(0, top - 12, "start", y));
}

double Scale::operator()(double value) const {
  const double v = log ? std::log10(std::max(value, least)) : value;
  const double a = log ? std::log10(least) : least, b = log ? std::log10(most) : most;
  return b > a ? from + (v - a) / (b - a) * (to - from) : (from + to) / 2;
}

// Returns 1, 2 and 5 times powers of ten.
std::vector<double> Scale::fine_ticks() const {
  std::vector<double> values;
  for (double power = std::pow(10, std::floor(std::log10(least))); power <= most; power *= 10)
    for (const double v : {power, 2 * power, 5 * power})
      if (v >= least && v <= most) values.push_back(v);
  return values;
}

std::vector<double> Scale::ticks() const {
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

std::string x_axis(const Frame& frame, const Scale& x, double bottom, const std::string& name) {
  std::string out = line(frame.left, bottom, frame.right, bottom, "class=\"axis\"");
  for (const double v : x.ticks()) {
    out += line(x(v), bottom, x(v), bottom + 4, "class=\"axis\"") +
           label(x(v), bottom + 17, "middle", string_printf("%.4g", v));
  }
  // A long name is in the middle of the picture, not of the axis.
  const bool fits = kLetter * static_cast<double>(name.size()) <= frame.right - frame.left;
  const double middle = fits ? (frame.left + frame.right) / 2 : frame.width / 2;
  return out + label(middle, bottom + 34, "middle", name);
}

std::string y_grid(const Frame& frame,
                   const Scale& y,
                   const std::vector<double>& values,
                   const std::vector<std::string>& texts) {
  std::string out;
  for (size_t i = 0; i < values.size(); ++i) {
    const double at = y(values[i]);
    out += line(frame.left, at, frame.right, at, "class=\"grid\"") +
           label(frame.left - 8, at + 4, "end", texts[i]);
  }
  return out;
}

std::vector<std::string> tick_texts(const std::vector<double>& values, bool log) {
  std::vector<std::string> texts;
  for (const double v : values) texts.push_back(string_printf(log ? "%.0e" : "%.4g", v));
  return texts;
}

Legend legend(const Frame& frame, const std::vector<Entry>& entries, double y) {
  Legend out{"", 18};
  double x = frame.left;
  for (const Entry& entry : entries) {
    const double width = 34 + kLetter * static_cast<double>(entry.name.size());
    if (x + width > frame.width && x > frame.left) {
      x = frame.left;
      y += 18;
      out.height += 18;
    }
    out.drawing += rectangle(x, y - 9, 14, 10, entry.look) + label(x + 19, y, "start", entry.name);
    x += width;
  }
  return out;
}

}  // namespace yoke::compare
