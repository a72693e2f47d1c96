// Every key of an Accelerate config and every environment variable of Accelerate, and how it is
// handled. The code that reads a config, and the README, follow this table. Everything here is
// constant and may be used by any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke::accelerate_compat {

enum class Handling {
  kSection,   // a map; its keys have rows of their own
  kHonoured,  // has an effect here
  kRun,       // the run file decides; a value that differs from the run's is refused
  kNoEffect,  // changes nothing here; reported as a note unless the value is harmless
  kRefused,   // refused, unless the value is harmless
};

// The type that a value must have.
enum class Form { kAny, kBool, kInt, kString };

struct Key {
  std::string_view path;      // "fsdp_config.fsdp_version"; "" = exists only as a variable
  std::string_view variable;  // "FSDP_VERSION"; "X_*" = any with this prefix; "" = only in files
  Handling handling;
  Form form;
  // Accelerate's default for kHonoured and kRun, else the harmless value, which leaves the feature
  // off. "" = there is none.
  std::string_view value;
  std::string_view why;  // text for users: its effect, why it has none, or what to do instead

  // Returns the name that identifies the key: its path, or its variable if it has no path.
  std::string_view name() const { return path.empty() ? variable : path; }
};

std::span<const Key> keys();
// Return the row of a key or a variable, or NULL if Accelerate has none of that name.
const Key* find_path(std::string_view path);
const Key* find_variable(std::string_view variable);
// Return names for "did you mean": all keys of the same section as `path`, and all variables.
std::vector<std::string> siblings(std::string_view path);
std::vector<std::string> variables();

}  // namespace yoke::accelerate_compat
