// Copies of the libraries built from toy.c in a temporary folder, where a test may change their
// names and access modes.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/temp_folder.hpp"
#include "yoke/error.hpp"

namespace yoke::testing {

class Toys {
 public:
  // Copies one library and returns the path of the copy: toy_crash_on_load.so for "crash_on_load",
  // toy.so for "".
  std::string copy(const std::string& variant) const {
    const std::string name = variant.empty() ? "toy.so" : "toy_" + variant + ".so";
    const std::string path = folder_ / name;
    std::filesystem::copy_file(std::filesystem::path(YOKE_TOYS) / name, path);
    set_mode(path, 0644);
    return path;
  }
  static void set_mode(const std::string& path, unsigned mode) {
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(mode));
  }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
};

// Returns the version of this host, as messages about a backend contain it.
inline std::string this_abi() {
  return "this Yoke ABI " + std::to_string(YOKE_ABI_MAJOR) + "." + std::to_string(YOKE_ABI_MINOR);
}

// Returns the message of the Error that f throws, or "" if it throws none. Sets *code to its code.
template <class F>
std::string message_of(F&& f, int32_t* code = nullptr) {
  try {
    f();
  } catch (const Error& e) {
    if (code != nullptr) *code = e.code();
    return e.what();
  }
  return "";
}

}  // namespace yoke::testing
