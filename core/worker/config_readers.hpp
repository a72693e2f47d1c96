// Backends that read configs of other programs.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// An option of a backend that takes the path of such a config.
struct ConfigReader {
  std::string backend;
  std::string option;
  std::string patterns;  // file names that the option accepts, e.g. "ds_config*.json, *.json"

  // Returns whether the name of `file` matches one of the patterns.
  bool accepts(const std::string& file) const;
};

// Returns the readers of a backend, given by its name or path, or those of every backend that can
// be found and used if `backend` is "". Throws Error if the given backend cannot be used.
std::vector<ConfigReader> config_readers(const std::string& backend);

}  // namespace yoke
