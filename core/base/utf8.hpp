// UTF-8: validation, and texts that may end inside a character. All functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

// U+FFFD, which replaces bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The character that begins at one byte of a text.
struct Utf8Char {
  bool valid = false;
  // True if the text ends inside the character, and more bytes could complete it.
  bool truncated = false;
  // Number of bytes of the character; of an invalid one, the number of bytes that one replacement
  // character stands for (the maximal subpart of Unicode, chapter 3.9).
  size_t bytes = 1;
  char32_t code = 0;  // the code point, if valid
};

// Returns the character at byte `at`, which must be inside the text.
Utf8Char utf8_char(std::string_view text, size_t at);

// Returns the offset of the first byte that is not UTF-8, or npos if the whole text is UTF-8.
size_t first_invalid_utf8(std::string_view text);

// Throws Error(INVALID_ARGUMENT) with a text that starts with `where` and names the offset of the
// first byte that is not UTF-8. Does nothing if there is none.
void require_utf8(std::string_view text, const std::string& where);

// Returns the text with U+FFFD in place of what is not UTF-8.
std::string replace_invalid_utf8(std::string_view text);

// Appends the UTF-8 form of a code point to `out`.
void append_utf8(char32_t code, std::string& out);

// Returns true for Unicode's White_Space.
bool is_white_space(char32_t code);

}  // namespace yoke
