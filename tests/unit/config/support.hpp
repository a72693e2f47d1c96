// Loads a configuration from text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "tests/support/temp_folder.hpp"

namespace yoke::testing {

// The input of a config test: the three layers of a configuration. Loading finds two fake backends,
// "ox" and "draught_horse".
struct Given {
  std::string file;
  std::vector<std::string> overrides{};
  Environment environment{};
};

// The two keys that every run needs, in lines 1 and 2.
inline constexpr const char* kLeast = "parallel_backend = \"ox\"\ndata.path = \"text\"\n";

class Loading {
 public:
  explicit Loading(const Given& given) : path_(folder_.write("run.toml", given.file)) {
    const auto list = [this](const std::vector<std::string>& path) {
      backend_path_ = path;
      return std::vector<std::string>{"draught_horse", "ox"};
    };
    try {
      config_ = load_config(path_, given.overrides, given.environment, list);
    } catch (const ConfigError& e) {
      faults_ = e.faults();
      text_ = e.what();
      sound_part_ = e.sound_part();
    }
  }

  const LoadedConfig& config() const {
    EXPECT_EQ(faults_, std::vector<std::string>{});
    return config_;
  }
  const RunConfig& run() const { return config().run; }
  // The messages, without the temporary folder: "run.toml:3: ...".
  std::vector<std::string> faults() const {
    std::vector<std::string> short_ones;
    for (const std::string& fault : faults_) short_ones.push_back(shorten(fault));
    return short_ones;
  }
  std::string text() const { return shorten(text_); }
  const RunConfig& sound_part() const { return sound_part_; }
  const std::vector<std::string>& backend_path() const { return backend_path_; }

  std::string origin(const std::string& key) const { return shorten(resolved(key).origin); }
  std::string value(const std::string& key) const { return resolved(key).value; }

 private:
  const Resolved& resolved(const std::string& key) const {
    static const Resolved none{"", "no such key", "no such key"};
    for (const Resolved& item : config().values) {
      if (item.key == key) return item;
    }
    return none;
  }
  std::string shorten(std::string text) const {
    const std::string prefix = folder_.path().string() + "/";
    for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
    return text;
  }

  TempFolder folder_;
  std::string path_;
  LoadedConfig config_;
  std::vector<std::string> faults_;
  std::string text_;
  RunConfig sound_part_;
  std::vector<std::string> backend_path_;
};

// Returns a run file with `more` after the two keys.
inline std::string least(const std::string& more = "") {
  return kLeast + more;
}

}  // namespace yoke::testing
