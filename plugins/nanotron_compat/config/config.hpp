// A YAML file of nanotron: the file of the option config, and keys that the run file gives in
// [nanotron_compat]. All keys are checked against the tables of keys.hpp.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/nanotron_compat/config/keys.hpp"
#include "sdk/compat/foreign_config.hpp"
#include "sdk/compat/yaml.hpp"
#include "yoke/backend.hpp"

namespace yoke::nanotron_compat {

class Config final : public compat::ForeignConfig {
 public:
  // Reads everything and checks each key by itself: it must be known, given once, of the right
  // form, and supported. Problems become messages, and reading continues. Never throws for what a
  // user wrote. A key that the file leaves out has nanotron's default.
  explicit Config(const Options& options);

  // Returns the name of a key of AdamW ("adam_eps"), which nanotron 0.4 has in another section.
  std::string adam_key(std::string_view name) const;
  // Returns the values of optimizer.weight_decay_exclude_named_params.
  const std::vector<std::string>& excluded() const { return excluded_; }

 private:
  void read_file(std::string_view text);
  void read_map(const compat::YamlNode& map, const std::string& path);
  void read_node(const std::string& path, const compat::YamlNode& node);
  void read_stages(const compat::YamlNode& stages);
  void read_value(const Key& key, const compat::YamlNode& node);
  void read_options(const Options& options);
  void check_version();
  void require_keys();
  std::string in_file(int line, std::string_view path) const;

  std::set<std::string, std::less<>> seen_;  // paths in the file, whatever their values
  std::string of_old_, of_new_;  // label of a key that only 0.4, or only its successors, have
  bool is_old_data_ = false;     // whether the file has the section data of 0.4
  std::vector<std::string> excluded_;
};

// Returns the options of [nanotron_compat] in a run file: config, loss, and every honoured key.
// They live as long as the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::nanotron_compat
