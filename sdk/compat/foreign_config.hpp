// A config of another program after it has been read: settings with their values, where the user
// gave each, and what is wrong with them. Code that reads a format derives from this class.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/setting.hpp"
#include "yoke/plan_report.hpp"

namespace yoke::compat {

class ForeignConfig {
 public:
  // Returns whether there is a file. Its silence about a setting then means the other program's
  // default.
  bool has_file() const { return !file_.empty(); }
  // Returns whether a setting was given; for a switch, whether it is on.
  bool is_given(std::string_view name) const { return given_.count(name) > 0; }
  // Return the value of a setting, or the other program's default if it was not given; nullopt if
  // it has none, or the value is wrong, which is reported. name: that of a row, never an alias.
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> word(std::string_view name) const;
  // Returns the values as they were given, empty if the setting was not.
  std::vector<std::string> words(std::string_view name) const;

  // Return texts for messages: the setting as the user wrote it, such as "run.sh:7: --lr" or
  // "mine.overlap", and its value.
  std::string label(std::string_view name) const;
  std::string shown(std::string_view name) const;
  const PlanMessages& messages() const { return messages_; }

 protected:
  // Returns the row of a setting, NULL if the other program has none of that name.
  using Find = const Setting* (*)(std::string_view);
  struct Given {
    std::vector<std::string> values;
    std::string label;
  };
  // file: its path as the user wrote it; "" = none.
  ForeignConfig(std::string file, Find find) : file_(std::move(file)), find_(find) {}
  ~ForeignConfig() = default;

  // Checks a value against its row, and stores or reports it. A setting that is given again must
  // have the same value.
  void take(const Setting& setting, const Given& given);
  void refuse(const Given& given, std::string_view allowed, std::string_view hint);

  std::string file_;
  PlanMessages messages_;

 private:
  void check_value(const Setting& setting, const Given& given);

  Find find_;
  std::map<std::string, Given, std::less<>> given_;  // keys: names of settings
};

}  // namespace yoke::compat
