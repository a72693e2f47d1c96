// A Megatron command line: the file of the option args_file, and arguments that the run file gives
// in [megatron_compat]. All arguments are checked against the tables of arguments.hpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/megatron_compat/config/arguments.hpp"
#include "plugins/megatron_compat/config/words.hpp"
#include "yoke/backend.hpp"

namespace yoke::megatron_compat {

class Config {
 public:
  // Reads everything and checks each argument by itself: it must be known, given once, of the right
  // form, and supported. Problems become messages, and reading continues. Never throws for what a
  // user wrote.
  explicit Config(const Options& options);

  // Returns whether there is a file. Its silence about an argument then means Megatron's default.
  bool has_file() const { return !file_.empty(); }
  // Returns the number of processes that the launcher in the file would start; nullopt = unknown.
  std::optional<int64_t> launched() const { return launched_; }

  // Returns whether an argument was given; for a switch, whether it is on.
  bool is_given(std::string_view name) const { return given_.count(name) > 0; }
  // Return the value of an argument, or Megatron's default if it was not given; nullopt if it has
  // none, or the value is wrong, which is reported. name: "--lr", never an alias.
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  std::optional<std::string> word(std::string_view name) const;

  // Return texts for messages: the argument as the user wrote it, such as "run.sh:7: --lr" or
  // "megatron_compat.overlap_grad_reduce", and its value.
  std::string label(std::string_view name) const;
  std::string shown(std::string_view name) const;
  const PlanMessages& messages() const { return messages_; }

 private:
  struct Given {
    std::vector<std::string> values;
    std::string label;
  };
  void read_file();
  void read_launcher(const std::vector<Word>& words);
  void read_argument(const std::string& name, const std::string& label, const Given& given);
  void check_form(const Argument& argument, const Given& given);
  void read_options(const Options& options);
  void require_defaults();
  void refuse(const Given& given, std::string_view allowed, std::string_view hint);

  std::string file_;  // path as the user wrote it; "" = none
  std::string_view text_;
  std::map<std::string, Given, std::less<>> given_;  // keys: names of arguments
  std::optional<int64_t> launched_;
  PlanMessages messages_;
};

// Returns the options of [megatron_compat] in a run file: args_file, loss, and every honoured
// argument. They live as long as the process.
const std::vector<const YokeOptionInfo*>& option_infos();

}  // namespace yoke::megatron_compat
