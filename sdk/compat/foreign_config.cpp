#include "sdk/compat/foreign_config.hpp"

#include "sdk/compat/number.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::compat {
namespace {

std::string joined(const std::vector<std::string>& values) {
  return values.empty() ? "on" : join(values, " ");
}

}  // namespace

void ForeignConfig::take(const Setting& setting, const Given& given) {
  switch (setting.handling) {
    case Handling::kNote:
      messages_.push_back({given.label, joined(given.values), "", std::string(setting.why), true});
      given_.insert_or_assign(std::string(setting.name), given);
      return;
    case Handling::kNoEffect:
    case Handling::kInert:
      messages_.push_back(
          {given.label, joined(given.values), "", concat("no effect: ", setting.why), true});
      return;
    case Handling::kRefused:
      if (setting.form == Form::kSwitch && given.values.empty()) break;
      if (accepts(setting, joined(given.values))) return;
      break;
    default:
      return check_value(setting, given);
  }
  refuse(given, choices_text(setting.accepted), setting.why);
}

void ForeignConfig::check_value(const Setting& setting, const Given& given) {
  if (!has_form(setting.form, given.values)) {
    refuse(given, form_text(setting.form), concat("it takes ", form_text(setting.form)));
    return;
  }
  if (const auto before = given_.find(setting.name);
      before != given_.end() && before->second.values != given.values) {
    refuse(given,
           joined(before->second.values),
           concat("it is given twice with different values, here and as ", before->second.label));
  } else if (!accepts(setting, joined(given.values))) {
    refuse(given, choices_text(setting.accepted), setting.why);
  }
  given_.emplace(setting.name, given);
}

void ForeignConfig::refuse(const Given& given, std::string_view allowed, std::string_view hint) {
  messages_.push_back({given.label, joined(given.values), std::string(allowed), std::string(hint)});
}

std::optional<std::string> ForeignConfig::word(std::string_view name) const {
  if (const auto given = given_.find(name); given != given_.end())
    return joined(given->second.values);
  const std::string_view otherwise = find_(name)->otherwise;
  return otherwise.empty() ? std::nullopt : std::optional<std::string>(otherwise);
}

std::vector<std::string> ForeignConfig::words(std::string_view name) const {
  const auto found = given_.find(name);
  return found == given_.end() ? std::vector<std::string>() : found->second.values;
}

std::optional<int64_t> ForeignConfig::integer(std::string_view name) const {
  const auto text = word(name);
  return text ? parsed<int64_t>(*text) : std::nullopt;
}

std::optional<double> ForeignConfig::number(std::string_view name) const {
  const auto text = word(name);
  return text ? parsed<double>(*text) : std::nullopt;
}

std::optional<bool> ForeignConfig::boolean(std::string_view name) const {
  const auto text = word(name);
  return text == "true" || text == "false" ? std::optional(text == "true") : std::nullopt;
}

std::string ForeignConfig::label(std::string_view name) const {
  const auto given = given_.find(name);
  if (given != given_.end()) return given->second.label;
  return file_.empty() ? std::string(name) : concat(file_, ": ", name);
}

std::string ForeignConfig::shown(std::string_view name) const {
  if (const auto given = given_.find(name); given != given_.end())
    return joined(given->second.values);
  const std::string_view otherwise = find_(name)->otherwise;
  return otherwise.empty() ? "unset" : concat("its default, ", otherwise);
}

}  // namespace yoke::compat
