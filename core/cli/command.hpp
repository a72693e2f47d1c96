// Shared by all commands: parses words with CLI11 and returns the right exit code. Include this
// header in .cpp files only, because CLI11 is slow to compile.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {

// Parses `args` with `app`, then runs `body` and returns its exit code. --help prints the help and
// returns 0. For wrong arguments it prints the error and how to get the help, and returns 2.
int run_command(CLI::App& app,
                const std::vector<std::string>& args,
                const std::function<int()>& body);

// Returns the exit code of a command that ended with this error: 2 if the user can fix it on the
// command line, otherwise 1, such as for damaged data.
int exit_code_of(const Error& e);

// Returns the word as a POSIX shell must read it to get the same word.
std::string shell_word(const std::string& word);

}  // namespace yoke
