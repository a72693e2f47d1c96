// Reads a ds_config: the file of the option config_file, and keys that the run file gives inline.
// All keys are checked against the table in keys.cpp.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/deepspeed_stub/config/keys.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {

class DsConfig {
 public:
  // Reads all keys and checks each one by itself: it must be known, given once, of the right type,
  // and supported. Problems become messages, and reading continues. Never throws for what a user
  // wrote.
  explicit DsConfig(const Options& options);

  // Replaces "auto" at the keys of AutoKind::kSize. hidden_size: that of the model; if it is 0,
  // which means unknown, adds a refusal of each of these keys instead.
  void fill_sizes(int64_t hidden_size);

  // Return the value of a kHonoured or kRun key, by its path in the JSON, if it was given. null
  // counts as not given, and so does "auto" if it leaves the key to the run.
  std::optional<bool> boolean(std::string_view path) const;
  std::optional<int64_t> integer(std::string_view path) const;
  std::optional<double> number(std::string_view path) const;
  std::optional<std::string> string(std::string_view path) const;
  const nlohmann::json* find(std::string_view path) const;  // NULL = not given
  // Returns the ZeRO stage, DeepSpeed's default if it was not given.
  int64_t zero_stage() const { return integer("zero_optimization.stage").value_or(0); }

  bool has_file() const { return !file_.empty(); }
  // Returns whether the file has the value "auto".
  bool is_auto(std::string_view path) const { return autos_.count(path) > 0; }
  // Returns whether the file, not an inline key, gives the value.
  bool is_in_file(std::string_view path) const;

  // A key of the file that has a row in the table of keys: its path, and its value as JSON text. A
  // section is one only if it is empty or not an object.
  struct Given {
    std::string path, text;
  };
  const std::vector<Given>& given() const { return given_; }

  // Return texts for messages: the key as the user wrote it, such as "ds.json:3:
  // zero_optimization.stage" or "deepspeed_stub.zero_stage", and its value, or "unset".
  std::string label(std::string_view path) const;
  std::string shown(std::string_view path) const;
  std::string in_file(std::string_view path) const;  // label of a key in the file
  const PlanMessages& messages() const { return messages_; }

 private:
  void read_file(std::string_view text);
  void read_object(const nlohmann::json& object, const std::string& path);
  void read_key(const Key& key, const std::string& path, const nlohmann::json& value);
  void read_auto(const std::string& path);
  void read_inline(const Options& options);
  void check_parameters_without_schedule();

  std::string file_;                               // path of the file as the user wrote it
  std::map<std::string, int, std::less<>> lines_;  // line of each key of the file, by its path
  std::vector<Given> given_;
  bool other_optimizer_ = false;  // whether the file chooses an optimizer that is not supported
  // Values of the kHonoured and kRun keys that were given, by the path of the key in the JSON.
  std::map<std::string, nlohmann::json, std::less<>> values_;
  std::set<std::string, std::less<>> autos_;
  // Names in [deepspeed_stub] of the keys that were given inline, by the path of the key.
  std::map<std::string, std::string, std::less<>> inline_;
  PlanMessages messages_;
};

}  // namespace yoke::deepspeed_stub
