// A Megatron command line: the file of the option args_file, and arguments that the run file gives
// in [megatron_compat]. All arguments are checked against the tables of arguments.hpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/megatron_compat/config/arguments.hpp"
#include "plugins/megatron_compat/config/words.hpp"
#include "sdk/compat/foreign_config.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

class Config final : public compat::ForeignConfig {
 public:
  // Reads everything and checks each argument by itself: it must be known, given once, of the right
  // form, and supported. Problems become messages, and reading continues. Never throws for what a
  // user wrote. An argument that the file leaves out has Megatron's default.
  explicit Config(const Options& options);

  // Returns the number of processes that the launcher in the file would start; nullopt = unknown.
  std::optional<int64_t> launched() const { return launched_; }

 private:
  void read_file(std::string_view text);
  void read_launcher(const std::vector<Word>& words);
  void read_argument(const std::string& name, const std::string& label, const Given& given);
  void read_options(const Options& options);
  void require_defaults();

  std::optional<int64_t> launched_;
};

// Returns the options of [megatron_compat] in a run file: args_file, loss, and every honoured
// argument. They live as long as the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::megatron_compat
