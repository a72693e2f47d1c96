// Every key of an Accelerate config and every variable that it knows, and what becomes of it: the
// one table behind the reader and the README.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke::accelerate_compat {

enum class Handling {
  kSection,   // a map; its keys have rows of their own
  kHonoured,  // it decides something here
  kRun,       // the run file decides; another value than the run's is refused
  kNoEffect,  // noted unless it has the harmless value; changes nothing here
  kRefused,   // any value but the harmless one is refused
};

enum class Form { kAny, kBool, kInt, kString };

struct Key {
  std::string_view path;      // "fsdp_config.fsdp_version"; "" = a variable only
  std::string_view variable;  // "FSDP_VERSION", "X_*": all that begin so; "" = a key of files only
  Handling handling;
  Form form;
  std::string_view
      value;  // kHonoured, kRun: Accelerate's default; else the harmless value; "" = none
  std::string_view why;  // what it does here, or why it does nothing, or what to do instead

  std::string_view name() const { return path.empty() ? variable : path; }
};

std::span<const Key> keys();
// NULL = unknown to Accelerate.
const Key* find_path(std::string_view path);
const Key* find_variable(std::string_view variable);
// For "did you mean": the keys of the same section, and all variables.
std::vector<std::string> siblings(std::string_view path);
std::vector<std::string> variables();

}  // namespace yoke::accelerate_compat
