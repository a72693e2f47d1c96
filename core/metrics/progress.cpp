#include "core/metrics/progress.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace yoke {
namespace {

constexpr int64_t kBarWidth = 20;

std::string two_units(int64_t large, char large_unit, int64_t small, char small_unit) {
  std::array<char, 48> text{};
  std::snprintf(text.data(),
                text.size(),
                "%lld%c %02lld%c",
                static_cast<long long>(large),
                large_unit,
                static_cast<long long>(small),
                small_unit);
  return text.data();
}

}  // namespace

std::string progress_line(const Progress& p) {
  const int64_t filled = kBarWidth * p.step / p.steps;
  std::array<char, 32> part{};
  std::snprintf(part.data(),
                part.size(),
                "] %3lld%%  loss %.4f",
                static_cast<long long>(100 * p.step / p.steps),
                p.loss);
  std::string line = "step " + std::to_string(p.step) + "/" + std::to_string(p.steps) + " [" +
                     std::string(filled, '#') + std::string(kBarWidth - filled, '-') + part.data();
  if (p.tps > 0) line += "  " + with_commas(p.tps) + " tps";
  if (p.step > p.first) {
    const double each = p.seconds / static_cast<double>(p.step - p.first);
    line += "  " + duration_text(each * static_cast<double>(p.steps - p.step)) + " left";
  }
  return line;
}

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::max(seconds, 0.0)));
  if (s < 60) return std::to_string(s) + "s";
  if (s < 3600) return two_units(s / 60, 'm', s % 60, 's');
  if (s < 86400) return two_units(s / 3600, 'h', s % 3600 / 60, 'm');
  return two_units(s / 86400, 'd', s % 86400 / 3600, 'h');
}

std::string with_commas(double value) {
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.0f", value);
  const std::string digits = buffer.data();
  if (!std::isfinite(value)) return digits;
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool first_digit = i == 0 || digits[i - 1] == '-';
    if (!first_digit && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

}  // namespace yoke
