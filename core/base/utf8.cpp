#include "core/base/utf8.hpp"

#include <cstring>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// What may follow the first byte of a character.
struct Lead {
  size_t bytes = 0;  // number of bytes of the character; 0 = no character begins with this byte
  unsigned char low = 0x80, high = 0xBF;  // allowed range of the second byte
};

// The ranges exclude surrogates, code points above U+10FFFF and forms that are longer than needed.
Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Char utf8_char(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const Lead lead = lead_of(byte(0));
  if (lead.bytes == 1) return {true, false, 1, byte(0)};
  if (lead.bytes == 0) return {};
  constexpr unsigned char kDataBits[] = {0, 0, 0x1F, 0x0F, 0x07};  // indexed by the number of bytes
  char32_t code = byte(0) & kDataBits[lead.bytes];
  for (size_t i = 1; i < lead.bytes; ++i) {
    if (at + i == text.size()) return {false, true, i, 0};
    const bool fits = i == 1 ? byte(1) >= lead.low && byte(1) <= lead.high : byte(i) >> 6 == 2;
    if (!fits) return {false, false, i, 0};
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {true, false, lead.bytes, code};
}

size_t first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    uint64_t eight = 0x80;
    if (at + 8 <= text.size()) std::memcpy(&eight, text.data() + at, 8);
    if ((eight & 0x8080808080808080u) == 0) {
      at += 8;
      continue;
    }
    const Utf8Char c = utf8_char(text, at);
    if (!c.valid) return at;
    at += c.bytes;
  }
  return std::string_view::npos;
}

void require_utf8(std::string_view text, const std::string& where) {
  const size_t at = first_invalid_utf8(text);
  if (at == std::string_view::npos) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              where + concat(" is not UTF-8: its byte ", at) +
                  string_printf(" is 0x%02x", static_cast<unsigned char>(text[at])) +
                  "; convert the text, for example with iconv -t UTF-8");
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    out += c.valid ? text.substr(at, c.bytes) : kReplacementCharacter;
    at += c.bytes;
  }
  return out;
}

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  const auto put_tail = [&](int shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put_tail(0);
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put_tail(6);
    put_tail(0);
  } else {
    put(0xF0 | code >> 18);
    put_tail(12);
    put_tail(6);
    put_tail(0);
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace yoke
