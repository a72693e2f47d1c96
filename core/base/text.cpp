#include "core/base/text.hpp"

#include <algorithm>
#include <cmath>

#include "yoke/text.hpp"

namespace yoke {
namespace {

std::string two_units(int64_t large, char large_unit, int64_t small, char small_unit) {
  return string_printf("%lld%c %02lld%c",
                       static_cast<long long>(large),
                       large_unit,
                       static_cast<long long>(small),
                       small_unit);
}

}  // namespace

std::string with_commas(double value) {
  const std::string digits = string_printf("%.0f", value);
  if (!std::isfinite(value)) return digits;
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool first_digit = i == 0 || digits[i - 1] == '-';
    if (!first_digit && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  return string_printf("%.*f %s", unit == 0 ? 0 : 1, value, kUnits[unit]);
}

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::max(seconds, 0.0)));
  if (s < 60) return concat(s, "s");
  if (s < 3600) return two_units(s / 60, 'm', s % 60, 's');
  if (s < 86400) return two_units(s / 3600, 'h', s % 3600 / 60, 'm');
  return two_units(s / 86400, 'd', s % 86400 / 3600, 'h');
}

std::string seconds_text(std::chrono::milliseconds time) {
  return string_printf("%g s", static_cast<double>(time.count()) / 1000);
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t begin = 0;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, begin)) {
    out += text.substr(begin, at - begin);
    out += to;
    begin = at + from.size();
  }
  return out += text.substr(begin);
}

}  // namespace yoke
