// What the commands share: reading words with CLI11 and ending with the right code. Include it in
// .cpp files only: CLI11 is slow to compile.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace yoke {

// Reads args with app, then runs body. --help prints and returns 0; a misuse prints what is wrong
// and where the help is, and returns 2.
int run_command(CLI::App& app,
                const std::vector<std::string>& args,
                const std::function<int()>& body);

}  // namespace yoke
