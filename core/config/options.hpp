// The options of a backend or of a model family: checks what the user wrote against what the
// backend or the family declares, and fills in the defaults. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "yoke/options.hpp"

namespace yoke {

// Returns the declared options as copies, which do not point into the description.
std::vector<OptionInfo> option_infos(const YokeDescription& description);

// Returns "int", "float", "bool", "string", "file" or "variables" for a YOKE_OPTION_... number, and
// "unknown" for any other number.
const char* option_type_name(int32_t type);

// Returns the option backend.key with a value from the command line or a variable, where strings
// need no quotes: 12, true and "text" are read as TOML, and anything else is a string.
BackendOption loose_option(const std::string& backend,
                           const std::string& key,
                           const std::string& text,
                           const std::string& origin);

// Returns the value of an option as it is written in a run file.
std::string written(const BackendOption& option);

// The values of all options of one owner, as the contract's YokeOption structs. Owns the strings
// that data() points to. Movable only.
class OptionList {
 public:
  struct Item {
    std::string key;
    std::string string_value;
    std::string content;  // contents of the file, or variables as lines NAME=VALUE
    double double_value = 0;
    int64_t int_value = 0;  // value of an int, or 0 or 1 for a bool
    int32_t type = YOKE_OPTION_STRING;
    bool given = false;  // true if the user set it, false if it has its default
    bool unset = false;  // true if the user did not set it and it has no default
    std::string origin;
    std::string note;  // sentence for the user about the value; "" = none
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

// The backend or the model family that declares the options.
struct OptionOwner {
  std::string table;  // table of the run file: "ox" or "model"
  std::string name;   // name in messages: "backend 'ox'" or "model family 'mine'"
};

// Returns the value of every option that the owner declares, in the order of the declaration, with
// defaults filled in. Options of other tables are ignored. Reads the files and the environment
// variables that options name. Throws ConfigError with every error (unknown option, wrong type,
// out of range, not a choice, unreadable file), Error(INVALID_ARGUMENT) if a family declares an
// option with the name of a key of any family, and Error(INTERNAL) if a declared default does not
// satisfy its own declaration.
OptionList check_options(const std::vector<BackendOption>& given,
                         const OptionOwner& owner,
                         const std::vector<OptionInfo>& infos);

// Replaces the options of the table `backend` in the configuration by the checked ones, defaults
// included, so that to_toml() writes the complete run. Unset options are left out.
void fill_options(LoadedConfig& config, const std::string& backend, const OptionList& options);

}  // namespace yoke
