#include "core/config/value.hpp"

#include <charconv>
#include <cmath>

#include "yoke/text.hpp"

namespace yoke {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

// Returns the number of bytes of the UTF-8 sequence that starts with `lead`; 0 if none can start
// with it.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// The bounds of the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xe0:
      return second >= 0xa0;
    case 0xed:
      return second <= 0x9f;
    case 0xf0:
      return second >= 0x90;
    case 0xf4:
      return second <= 0x8f;
    default:
      return true;
  }
}

}  // namespace

std::string to_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text.find('.') == std::string::npos ? text + ".0" : text;
  // to_chars writes 3e-04 and 1e+22; people write 3e-4 and 1e22.
  std::string exponent = text.substr(e + 1);
  const bool negative = exponent[0] == '-';
  exponent.erase(0, exponent.find_first_of("123456789"));
  return text.substr(0, e) + (negative ? "e-" : "e") + exponent;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += string_printf("\\u%04x", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string to_text(const Value& value) {
  return std::visit(Overloaded{[](bool b) -> std::string { return b ? "true" : "false"; },
                               [](int64_t i) { return concat(i); },
                               [](double d) { return to_text(d); },
                               [](const std::string& s) { return toml_string(s); },
                               [](const std::vector<Value>& list) {
                                 std::string out = "[";
                                 for (const Value& v : list) {
                                   out += (out.size() > 1 ? ", " : "") + to_text(v);
                                 }
                                 return out + "]";
                               },
                               [](const ForeignValue& other) { return other.text; }},
                    value.data);
}

bool is_scalar(const Value& value) {
  return !std::holds_alternative<std::vector<Value>>(value.data) &&
         !std::holds_alternative<ForeignValue>(value.data);
}

std::string kind_name(const Value& value) {
  return std::visit(Overloaded{[](bool) -> std::string { return "a boolean"; },
                               [](int64_t) -> std::string { return "an integer"; },
                               [](double) -> std::string { return "a float"; },
                               [](const std::string&) -> std::string { return "a string"; },
                               [](const std::vector<Value>&) -> std::string { return "a list"; },
                               [](const ForeignValue& other) { return other.kind; }},
                    value.data);
}

bool is_clean_text(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = sequence_length(lead);
    if (lead == 0 || length == 0 || i + length > text.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80 || (k == 1 && !second_byte_fits(lead, next))) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace yoke
