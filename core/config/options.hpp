// The options of a backend or of a model family: what the user wrote, checked against what they
// declare. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "yoke/options.hpp"

namespace yoke {

// Copies that live on their own.
std::vector<OptionInfo> option_infos(const YokeDescription& description);

// "int", "float", "bool", "string", "file", "variables"; "unknown" for any other number.
const char* option_type_name(int32_t type);

// The option backend.key with a value from the command line or a variable, where strings need no
// quotes: 12, true and "text" are read as TOML, anything else is a string.
BackendOption loose_option(const std::string& backend,
                           const std::string& key,
                           const std::string& text,
                           const std::string& origin);

// The value of an option as it is written in a run file.
std::string written(const BackendOption& option);

// Values of all options of one owner. Owns the strings that data() points to. Movable only.
class OptionList {
 public:
  struct Item {
    std::string key;
    std::string string_value;
    std::string content;  // of a file; of variables: lines NAME=VALUE
    double double_value = 0;
    int64_t int_value = 0;  // also of a bool
    int32_t type = YOKE_OPTION_STRING;
    bool given = false;  // false = the default
    bool unset = false;  // not given, and there is no default
    std::string origin;
  };

  explicit OptionList(std::vector<Item> items);
  OptionList(OptionList&&) = default;
  OptionList& operator=(OptionList&&) = default;
  OptionList(const OptionList&) = delete;
  OptionList& operator=(const OptionList&) = delete;

  const YokeOption* data() const { return view_.data(); }
  uint64_t size() const { return view_.size(); }
  const std::vector<Item>& items() const { return items_; }

 private:
  std::vector<Item> items_;
  std::vector<YokeOption> view_;
};

// Whose options they are.
struct OptionOwner {
  std::string table;  // of the run file: "ox", "model"
  std::string name;   // for messages: "backend 'ox'", "model family 'mine'"
};

// The values of every option that the owner declares, in its order; defaults filled in. Options of
// other tables are passed by. Reads the files and the environment. Throws ConfigError with every
// fault (unknown key, type, range, choice, unreadable file); INTERNAL if the declaration
// contradicts itself.
OptionList check_options(const std::vector<BackendOption>& given,
                         const OptionOwner& owner,
                         const std::vector<OptionInfo>& infos);

// Replaces the options of the table `backend` in the configuration by the checked ones, defaults
// included, so that to_toml writes the complete run. Unset ones are left out.
void fill_options(LoadedConfig& config, const std::string& backend, const OptionList& options);

}  // namespace yoke
