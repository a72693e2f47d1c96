#include "sdk/conformance/log_line.hpp"

#include <string_view>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Returns the number of bytes of a character from its first byte, or 0 if no character starts with
// it.
size_t utf8_length(unsigned char first) {
  if (first < 0x80) return 1;            // 0xxxxxxx
  if ((first & 0xe0) == 0xc0) return 2;  // 110xxxxx
  if ((first & 0xf0) == 0xe0) return 3;  // 1110xxxx
  if ((first & 0xf8) == 0xf0) return 4;  // 11110xxx
  return 0;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t length = utf8_length(c);
    if (length == 0 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    i += length;
  }
  return true;
}

}  // namespace

std::string log_line_fault(int32_t level, const YokeString& line) {
  const std::string_view text = view(line);
  if (!is_utf8(text)) return "log was called with a line that is not UTF-8";
  if (text.find('\n') != std::string_view::npos) {
    return concat("log was called with a line that contains a newline: '", text.substr(0, 60), "'");
  }
  if (level < YOKE_LOG_DEBUG || level > YOKE_LOG_ERROR)
    return concat("log was called with level ", level, "; allowed: 1 to 4");
  return "";
}

}  // namespace yoke::conformance
