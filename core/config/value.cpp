#include "core/config/value.hpp"

#include <charconv>
#include <cmath>

#include "core/base/utf8.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

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
  return text.find('\0') == text.npos && first_invalid_utf8(text) == text.npos;
}

}  // namespace yoke
