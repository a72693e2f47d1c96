// Reads an Accelerate config: the file of the option config_file, and environment variables. All
// keys are checked against the table in keys.cpp. The file has precedence, as under `accelerate
// launch`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/config/keys.hpp"
#include "sdk/compat/yaml.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

class AccelerateConfig {
 public:
  // Reads all keys and checks each one by itself: it must be known, given once, of the right type,
  // and supported. Problems become messages, and reading continues, except after a syntax error.
  // Never throws for what a user wrote.
  explicit AccelerateConfig(const Options& options);

  bool has_file() const { return !file_.empty(); }
  const std::string& file() const { return file_; }  // path as the user wrote it

  // Return the value of a kHonoured or kRun key, by its Key::name(), if it was given. boolean()
  // also accepts keys of Form::kString, and returns nothing if the word does not mean true or
  // false.
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;  // value in upper case

  // Return texts for messages: where the user set the key, such as "ddp.yaml:3: distributed_type"
  // or "FSDP_VERSION", and its value, or "unset".
  std::string label(std::string_view name) const;
  std::string shown(std::string_view name) const;
  // A key of the file that Accelerate has.
  struct Given {
    const Key* key;
    std::string label;  // see label()
    std::string text;   // its value; "" = none, or an empty section or list
  };
  const std::vector<Given>& given() const { return given_; }  // without sections that have keys
  bool is_given(std::string_view name) const { return values_.find(name) != values_.end(); }
  const PlanMessages& messages() const { return messages_; }

 private:
  struct Value {
    std::string text;   // "true" or "false" for a boolean, decimal digits for an integer
    std::string label;  // see label()
  };

  void read_file(std::string_view text);
  void read_map(const compat::YamlNode& map, const std::string& path);
  void read_node(const Key& key, const std::string& path, const compat::YamlNode& node);
  void read_environment(std::string_view lines);
  void read_variable(const std::string& name, const std::string& text);
  void drop_unused_sizes();
  void apply(const Key& key, const Value& value);
  std::string in_file(int line, std::string_view path) const;

  std::string file_;  // path as the user wrote it
  // Values of the kHonoured and kRun keys that were given, by Key::name().
  std::map<std::string, Value, std::less<>> values_;
  // Result of label() for each key that the file gives, by the path of the key.
  std::map<std::string, std::string, std::less<>> in_file_;
  std::vector<Given> given_;
  PlanMessages messages_;
};

}  // namespace yoke::accelerate_compat
