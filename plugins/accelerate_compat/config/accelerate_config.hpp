// An Accelerate config: the file of config_file and the variables of the environment, read against
// the table of keys. The file wins, as it does under `accelerate launch`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/accelerate_compat/config/keys.hpp"
#include "plugins/accelerate_compat/config/yaml.hpp"
#include "yoke/backend.hpp"

namespace yoke::accelerate_compat {

class AccelerateConfig {
 public:
  // Reads and judges every key for itself: unknown, given twice, of a wrong form, refused, without
  // effect. Reads on after a fault, but not after one of the YAML.
  explicit AccelerateConfig(const Options& options);

  bool has_file() const { return !file_.empty(); }

  // The values that somebody gave, by Key::name(); a name may also be a word for a boolean.
  std::optional<bool> boolean(std::string_view name) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;  // in capitals where it is a name

  // What the user calls the key: "ddp.yaml:3: distributed_type" or "FSDP_VERSION".
  std::string label(std::string_view name) const;
  std::string shown(std::string_view name) const;  // its value
  bool is_given(std::string_view name) const { return values_.find(name) != values_.end(); }
  const PlanMessages& messages() const { return messages_; }

 private:
  struct Value {
    std::string text;  // a bool is "true" or "false", an integer is decimal
    std::string label;
  };

  void read_file(std::string_view text);
  void read_map(const YamlNode& map, const std::string& path);
  void read_node(const Key& key, const std::string& path, const YamlNode& node);
  void read_environment(std::string_view lines);
  void read_variable(const std::string& name, const std::string& text);
  void drop_unused_sizes();
  void apply(const Key& key, const Value& value);
  std::string in_file(int line, std::string_view path) const;

  std::string file_;                                         // path as the user wrote it
  std::map<std::string, Value, std::less<>> values_;         // kHonoured and kRun
  std::map<std::string, std::string, std::less<>> in_file_;  // all keys of the file, by name
  PlanMessages messages_;
};

}  // namespace yoke::accelerate_compat
