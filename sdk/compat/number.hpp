// Reads a number from text.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace yoke::compat {

// Returns the number that a whole text is, std::nullopt if it is none.
template <class Number>
std::optional<Number> parsed(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace yoke::compat
