// A row of a table of settings: an argument or a key of another program, and how a backend handles
// it. Everything here is constant and may be used by any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace yoke::compat {

enum class Handling {
  kHonoured,  // the engine follows it
  kRun,       // the run file decides; a value that differs from the run's is refused
  kNote,      // the run file decides; a note names the key
  kNoEffect,  // changes nothing here; reported as a note
  kInert,     // acts only together with a setting that is refused
  kRefused,   // refused, unless the value leaves the feature off
};

// The values that a setting takes. kWords is one word or more.
enum class Form { kSwitch, kBool, kInt, kNumber, kWord, kWords };

struct Setting {
  std::string_view name;  // "--lr", or "optimizer.zero_stage"
  Handling handling;
  Form form;
  std::string_view otherwise;  // default of the other program; "" = none. A switch is off.
  // Values that are accepted, separated by "|"; "" = all values, or none if the setting is refused.
  // For a switch, "on" or "off".
  std::string_view accepted;
  std::string_view why;  // text for users: its effect, why it has none, or what to do instead
};

// Returns whether a setting accepts a value. Numbers are compared as numbers.
bool accepts(const Setting& setting, std::string_view value);
// Returns whether values have a form. A switch has no value.
bool has_form(Form form, const std::vector<std::string>& values);
// Returns the text of a form for messages, such as "one whole number".
const char* form_text(Form form);
// Returns a list of accepted values for messages: "full|selective" becomes "full,selective".
std::string choices_text(std::string_view accepted);

}  // namespace yoke::compat
