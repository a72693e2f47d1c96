// Both drawings show the same boxes: a run of actions that compute one stage on one micro-batch.
// The text samples them at equal distances, so a box that is narrower than a column may be missing;
// the SVG is exact.
#include "core/cli/step_drawing.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "yoke/text.hpp"

namespace yoke {
namespace {

struct Box {
  int32_t kind, micro;
  int stage;  // index among the stages of the rank
  double begin, end;
};

int stage_of(const RankForecast& rank, int64_t block) {
  int stage = 0;
  for (const BlockRange& range : rank.stages) {
    if (block >= range.first && block < range.first + range.count) break;
    ++stage;
  }
  return stage;
}

std::vector<Box> boxes_of(const RankForecast& rank) {
  std::vector<Box> boxes;
  for (const ForecastAction& a : rank.actions) {
    if (!a.computes() || a.duration() == 0) continue;
    const Box box{a.kind, a.micro, stage_of(rank, a.block), a.begin, a.end};
    const bool continues = !boxes.empty() && boxes.back().kind == box.kind &&
                           boxes.back().micro == box.micro && boxes.back().stage == box.stage &&
                           boxes.back().end == box.begin;
    if (continues) {
      boxes.back().end = box.end;
    } else {
      boxes.push_back(box);
    }
  }
  return boxes;
}

// ---- Text ----

char letter_of(const Box& box) {
  const char* const letters = box.stage == 0 ? ".FRBIW" : ".frbiw";
  return letters[box.kind];
}

char digit_of(const Box& box) {
  return "0123456789abcdefghijklmnopqrstuvwxyz"[std::max(box.micro, 0) % 36];
}

// An average box is two columns wide.
double column_width(const std::vector<std::vector<Box>>& ranks) {
  double sum = 0;
  size_t count = 0;
  for (const auto& boxes : ranks) {
    for (const Box& box : boxes) sum += box.end - box.begin;
    count += boxes.size();
  }
  return sum / static_cast<double>(2 * std::max<size_t>(count, 1));
}

// Returns the two lines of a rank, without its name.
std::pair<std::string, std::string> lines_of(const std::vector<Box>& boxes,
                                             double width,
                                             size_t columns) {
  std::string letters(columns, '.'), digits(columns, ' ');
  size_t next = 0;
  for (size_t column = 0; column < columns; ++column) {
    const double time = (static_cast<double>(column) + 0.5) * width;
    while (next < boxes.size() && boxes[next].end <= time) ++next;
    if (next == boxes.size() || boxes[next].begin > time) continue;
    letters[column] = letter_of(boxes[next]);
    digits[column] = digit_of(boxes[next]);
  }
  return {letters, digits};
}

// ---- SVG ----

constexpr double kLeft = 60, kWidth = 1200, kRow = 26, kMemory = 22, kGap = 8, kTop = 60;

// Returns the fill colour of a kind of action; the colours can be distinguished by colour-blind
// people.
const char* colour_of(int32_t kind) {
  static const char* const colours[] = {
      "#999999", "#56b4e9", "#cc79a7", "#009e73", "#009e73", "#e69f00"};
  return colours[kind];
}

// style: further attributes of the text.
std::string text_at(double x, double y, const std::string& text, const char* style = "") {
  std::string escaped;
  for (const char c : text) escaped += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return string_printf("<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, style) + escaped + "</text>\n";
}

std::string svg_box(const Box& box, double y, double scale) {
  const double x = kLeft + box.begin * scale, width = (box.end - box.begin) * scale;
  std::string svg = string_printf(
      "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" "
      "fill-opacity=\"%.2f\" "
      "stroke=\"#fff\" stroke-width=\"0.5\"/>\n",
      x,
      y,
      width,
      kRow,
      colour_of(box.kind),
      box.stage == 0 ? 1.0 : 0.6);
  const std::string number = std::to_string(box.micro);
  if (width > 5 * static_cast<double>(number.size()))
    svg +=
        text_at(x + width / 2, y + kRow * 0.65, number, "text-anchor=\"middle\" font-size=\"9\"");
  return svg;
}

// Returns the memory of the step over time, as an area below the rank's row. `most`: bytes of its
// full height.
std::string svg_memory(const RankForecast& rank, double y, double scale, double most) {
  if (rank.bytes_at(rank.peak()) < 0 || most <= 0) return "";
  std::string points = string_printf("%.2f,%.2f ", kLeft, y + kMemory);
  const auto add = [&](double time, double bytes) {
    points += string_printf(
        "%.2f,%.2f ", kLeft + time * scale, y + kMemory * (1 - std::min(bytes / most, 1.0)));
  };
  double before = 0;
  for (const ForecastAction& a : rank.actions) {
    const auto bytes = static_cast<double>(a.step_bytes());
    if (bytes == before) continue;
    add(a.begin, before);
    add(a.begin, bytes);
    before = bytes;
  }
  add(rank.actions.back().end, before);
  points += string_printf("%.2f,%.2f", kLeft + rank.actions.back().end * scale, y + kMemory);
  return "<polygon fill=\"#888\" fill-opacity=\"0.35\" points=\"" + points + "\"/>\n";
}

std::string legend() {
  const std::pair<int32_t, const char*> kinds[] = {
      {YOKE_FORECAST_FORWARD, "forward"},
      {YOKE_FORECAST_RECOMPUTE, "recompute"},
      {YOKE_FORECAST_BACKWARD_INPUT, "backward, or its part for the input"},
      {YOKE_FORECAST_BACKWARD_WEIGHT, "gradients of weights"},
      {YOKE_FORECAST_OTHER, "memory of the step"}};
  std::string svg;
  double x = kLeft;
  for (const auto& [kind, name] : kinds) {
    svg += string_printf(
        "<rect x=\"%.1f\" y=\"34\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x, colour_of(kind));
    svg += text_at(x + 17, 44, name);
    x += 40 + 7.0 * static_cast<double>(std::string(name).size());
  }
  return svg;
}

}  // namespace

std::string text_drawing(const StepForecast& forecast, int columns) {
  std::vector<std::vector<Box>> ranks;
  for (const RankForecast& rank : forecast.ranks) ranks.push_back(boxes_of(rank));
  const double width = column_width(ranks);
  if (width <= 0) return "";
  const auto all = static_cast<size_t>(std::ceil(forecast.end() / width - 1e-9));
  const auto band = static_cast<size_t>(std::max(columns, 1));
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& boxes : ranks) lines.push_back(lines_of(boxes, width, all));
  std::string text;
  for (size_t from = 0; from < all; from += band) {
    if (from > 0) text += "\n";
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto& [letters, digits] = lines[r];
      text += string_printf("%4zu  ", r) + letters.substr(from, band) + "\n      " +
              digits.substr(from, band) + "\n";
    }
  }
  return text;
}

std::string svg_drawing(const StepForecast& forecast, const std::string& title) {
  const double scale = forecast.end() > 0 ? kWidth / forecast.end() : 0;
  const double row = kRow + kMemory + kGap;
  const double height = kTop + row * static_cast<double>(forecast.ranks.size());
  double most = 0;  // most bytes that a step needs on any rank
  for (const RankForecast& rank : forecast.ranks) {
    most = std::max(most, static_cast<double>(rank.actions[rank.peak()].step_bytes()));
  }
  std::string svg = string_printf(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      kLeft + kWidth + 20,
      height);
  svg += text_at(kLeft, 20, title) + legend();
  for (size_t r = 0; r < forecast.ranks.size(); ++r) {
    const double y = kTop + row * static_cast<double>(r);
    svg += text_at(8, y + kRow * 0.68, concat("rank ", r));
    for (const Box& box : boxes_of(forecast.ranks[r])) svg += svg_box(box, y, scale);
    svg += svg_memory(forecast.ranks[r], y + kRow + 1, scale, most);
  }
  return svg + "</svg>\n";
}

}  // namespace yoke
