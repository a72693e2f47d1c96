// Texts for messages: concat() joins its arguments into one string, string_printf() formats as
// printf does. Does not need LibTorch.
//
//   concat("loss ", 0.25, " in step ", 7)            "loss 0.25 in step 7"
//   string_printf("%6.2f GiB", bytes / kGiB)         "  1.50 GiB"
//
// concat() does not depend on the locale. All functions may be called from any thread and throw
// only std::bad_alloc.
#pragma once

#include <array>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

namespace yoke {

namespace detail {

// These append one argument of concat() to the text.
inline void append(std::string& text, std::string_view part) {
  text += part;
}
inline void append(std::string& text, char part) {
  text += part;
}
// Writes a number as std::to_chars does: an integer in decimal, a floating-point number with the
// fewest digits that read back as the same value.
template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
void append(std::string& text, Number number) {
  static_assert(!std::is_same_v<Number, bool>, "write out the word that a flag means");
  // Every number fits, so to_chars cannot fail.
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

}  // namespace detail

// Returns its arguments joined into one string. An argument is a string, a string_view, a C string,
// a char or a number. A bool does not compile: pass the word that it means. Numbers need no
// std::to_string and keep their exact value: 0.1 is written "0.1".
//
//   throw Error(YOKE_INVALID_ARGUMENT, concat("step ", step, " is not the one after ", last));
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

// Returns what printf would print. Use it for numbers that need a width or a precision, and
// concat() for all else.
[[gnu::format(printf, 1, 2)]] inline std::string string_printf(const char* format, ...) {
  // The first pass measures the text, the second pass writes it. Each pass consumes its arguments,
  // so the second one needs a copy.
  std::va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  // vsnprintf returns a negative number for a text that it cannot encode; the result is then empty.
  std::string text(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace yoke
