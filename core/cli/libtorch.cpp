// A worker that cannot find LibTorch fails in the dynamic linker, with a message that does not say
// what to do. Therefore the dynamic linker is first run with LD_TRACE_LOADED_OBJECTS: it then
// prints which file it would load for each library, and starts nothing. dlopen() in this process
// would find the same problems, but would load several hundred megabytes.
#include "core/cli/libtorch.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <vector>

#include "core/base/subprocess.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace fs = std::filesystem;

namespace yoke {
namespace {

constexpr const char* kVariable = "YOKE_TORCH_LIB";
constexpr const char* kSearchPath = "LD_LIBRARY_PATH";
constexpr const char* kLibrary = "libtorch_cpu.so";
constexpr const char* kWanted = "LibTorch " YOKE_TORCH_VERSION;
constexpr const char* kHow =
    ", which `python3 -c 'import torch; print(torch.__path__[0] + \"/lib\")'` prints after "
    "`pip install torch==" YOKE_TORCH_VERSION "`";

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_FAILED_PRECONDITION, text);
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// Returns the folder that the user chose in YOKE_TORCH_LIB, or "".
fs::path chosen_folder() {
  const std::string given = value_of(kVariable);
  if (given.empty()) return {};
  const fs::path folder = fs::absolute(given).lexically_normal();
  std::error_code error;
  if (fs::exists(folder / kLibrary, error)) return folder;
  std::string text = concat(kVariable, " = \"", given, "\" ");
  text +=
      fs::is_directory(folder, error) ? concat("does not contain ", kLibrary) : "is not a folder";
  for (const char* inner : {"lib", "torch/lib"}) {
    if (fs::exists(folder / inner / kLibrary, error))
      refuse(text + "; did you mean " + (folder / inner).string() + "?");
  }
  refuse(text + "; give the lib folder of " + kWanted + kHow);
}

void search_first(const fs::path& folder) {
  const std::string before = value_of(kSearchPath);
  if (before == folder.string() || before.starts_with(folder.string() + ":")) return;
  ::setenv(kSearchPath, (folder.string() + (before.empty() ? "" : ":" + before)).c_str(), 1);
}

// Returns what the dynamic linker finds for each library that a program needs; "" = not found.
std::map<std::string, fs::path> libraries_of(const std::string& program) {
  std::map<std::string, fs::path> found;
  std::istringstream lines(
      run_subprocess({"/usr/bin/env", "LD_TRACE_LOADED_OBJECTS=1", program}).out);
  const std::regex one("\\s*(\\S+) => (not found|(.*) \\(0x[0-9a-f]+\\))");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, one)) found[match[1]] = match[3].str();
  }
  return found;
}

// Returns the version of LibTorch, such as "2.11.0". The wheel has it in version.py and the zip
// archive in build-version, both in the folder above lib. Returns "" if neither file exists.
std::string version_of(const fs::path& lib) {
  std::string line;
  std::smatch match;
  const std::regex number("(?:__version__ = ')?([0-9]+\\.[0-9]+\\.[0-9]+).*");
  for (const char* file : {"version.py", "build-version"}) {
    std::ifstream in(lib.parent_path() / file);
    while (std::getline(in, line)) {
      if (std::regex_match(line, match, number)) return match[1];
    }
  }
  return "";
}

}  // namespace

void provide_libtorch(const std::string& worker) {
  const fs::path chosen = chosen_folder();
  if (!chosen.empty()) search_first(chosen);
  std::vector<std::string> missing;
  const auto libraries = libraries_of(worker);
  for (const auto& [name, path] : libraries) {
    if (path.empty()) missing.push_back(name);
  }
  const auto torch = libraries.find(kLibrary);
  if (torch != libraries.end() && torch->second.empty())
    refuse(worker + " does not find LibTorch; set " + kVariable + " to the lib folder of " +
           kWanted + kHow);

  if (torch != libraries.end()) {
    const std::string version = version_of(torch->second.parent_path());
    if (!version.empty() && version != YOKE_TORCH_VERSION) {
      refuse("LibTorch in " + torch->second.parent_path().string() + " is version " + version +
             ", but this Yoke needs " YOKE_TORCH_VERSION "; set " + kVariable +
             " to the lib folder of " + kWanted + kHow);
    }
  }
  if (!missing.empty()) {
    refuse(worker + " needs libraries that were not found: " + join(missing) +
           "; those of LibTorch come with `pip install torch==" YOKE_TORCH_VERSION
           "` (without --no-deps), and " +
           kVariable + " names their folder; for others, set " + kSearchPath);
  }
}

}  // namespace yoke
