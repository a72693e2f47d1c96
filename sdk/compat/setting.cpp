#include "sdk/compat/setting.hpp"

#include <algorithm>

#include "sdk/compat/number.hpp"

namespace yoke::compat {
namespace {

// Returns whether two values are equal, as numbers if both are numbers.
bool same(std::string_view a, std::string_view b) {
  if (a == b) return true;
  const auto x = parsed<double>(a), y = parsed<double>(b);
  return x && y && *x == *y;
}

}  // namespace

bool accepts(const Setting& setting, std::string_view value) {
  for (size_t begin = 0; begin <= setting.accepted.size();) {
    const size_t end = std::min(setting.accepted.find('|', begin), setting.accepted.size());
    if (same(setting.accepted.substr(begin, end - begin), value)) return true;
    begin = end + 1;
  }
  return setting.accepted.empty() && setting.handling != Handling::kRefused;
}

bool has_form(Form form, const std::vector<std::string>& values) {
  const bool is_one = values.size() == 1;
  switch (form) {
    case Form::kSwitch:
      return values.empty();
    case Form::kBool:
      return is_one && (values[0] == "true" || values[0] == "false");
    case Form::kInt:
      return is_one && parsed<int64_t>(values[0]);
    case Form::kNumber:
      return is_one && parsed<double>(values[0]);
    case Form::kWord:
      return is_one;
    case Form::kWords:
      break;
  }
  return true;
}

const char* form_text(Form form) {
  switch (form) {
    case Form::kSwitch:
      return "no value";
    case Form::kBool:
      return "true, false";
    case Form::kInt:
      return "one whole number";
    case Form::kNumber:
      return "one number";
    case Form::kWord:
      return "one word";
    case Form::kWords:
      break;
  }
  return "one word or more";
}

std::string choices_text(std::string_view accepted) {
  std::string text(accepted);
  std::replace(text.begin(), text.end(), '|', ',');
  return text;
}

}  // namespace yoke::compat
