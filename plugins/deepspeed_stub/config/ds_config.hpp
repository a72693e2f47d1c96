// A ds_config: the file of config_file and the same keys inline, read against the table of keys.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/deepspeed_stub/config/keys.hpp"
#include "yoke/backend.hpp"

namespace yoke::deepspeed_stub {

// What the user must (note: should) know; becomes a YokeRefusal.
struct Finding {
  std::string key, given, allowed, hint;
  bool note = false;
};

class DsConfig {
 public:
  // Reads and judges every key for itself: unknown, given twice, of a wrong form, refused, without
  // effect. Reads on after a fault.
  explicit DsConfig(const Options& options);

  // The values that somebody gave, by path in the JSON; "auto" and null are as if not given.
  std::optional<bool> boolean(std::string_view path) const;
  std::optional<int64_t> integer(std::string_view path) const;
  std::optional<double> number(std::string_view path) const;
  std::optional<std::string> string(std::string_view path) const;
  const nlohmann::json* find(std::string_view path) const;

  // Given, and not inline.
  bool is_in_file(std::string_view path) const;

  // What the user calls the key: "ds.json: zero_optimization.stage" or "deepspeed_stub.zero_stage".
  std::string label(std::string_view path) const;
  std::string shown(std::string_view path) const;  // its value
  const std::vector<Finding>& findings() const { return findings_; }

 private:
  void read_file(std::string_view text);
  void read_object(const nlohmann::json& object, const std::string& path);
  void read_key(const Key& key, const std::string& path, const nlohmann::json& value);
  void read_inline(const Options& options);
  std::string in_file(std::string_view path) const { return file_ + ": " + std::string(path); }

  std::string file_;                                           // path as the user wrote it
  std::map<std::string, nlohmann::json, std::less<>> values_;  // kHonoured and kRun
  std::map<std::string, std::string, std::less<>> inline_;  // path -> name, of those given inline
  std::vector<Finding> findings_;
};

// [deepspeed_stub] of a run file: config_file, and every key that can stand inline.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::deepspeed_stub
