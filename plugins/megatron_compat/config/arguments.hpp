// Every argument of pretrain_gpt.py and how it is handled. The code that reads a command line, the
// options of a run file and plugins/megatron_compat/ARGUMENTS.md all follow this table. Everything
// here is constant and may be used by any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/compat/setting.hpp"

namespace yoke::megatron_compat {

using compat::Form;
using compat::Handling;
using Argument = compat::Setting;

// Arguments that share everything but their names. Their values are not read.
struct Group {
  Handling handling;
  std::string_view why;
  std::span<const std::string_view> names;
};

// Another spelling of an argument.
struct Alias {
  std::string_view alias, name;
};

std::span<const Argument> honoured_arguments();
std::span<const Argument> run_arguments();
std::span<const Argument> refused_arguments();
std::span<const Group> no_effect_groups();
std::span<const Group> inert_groups();
std::span<const Alias> aliases();

// Returns all arguments of the tables above, with their own names.
const std::vector<Argument>& arguments();
// Returns the argument with a name or an alias; NULL if Megatron has none.
const Argument* find_argument(std::string_view name);
// Returns all names and aliases, for "did you mean".
const std::vector<std::string>& spellings();
// Returns the name of an honoured argument in [megatron_compat] of a run file:
// "overlap_grad_reduce" for --overlap-grad-reduce.
std::string option_name(const Argument& argument);

}  // namespace yoke::megatron_compat
