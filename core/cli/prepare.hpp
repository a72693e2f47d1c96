// yoke data prepare FILE ...
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace yoke {

// Adds the command `prepare` to `yoke data`. The function that it returns runs the command after
// the command line was parsed, prints the result and returns the exit code. It throws Error.
std::function<int()> add_prepare_command(CLI::App& data);

}  // namespace yoke
