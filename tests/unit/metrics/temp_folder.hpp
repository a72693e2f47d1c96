// A separate folder for a test, which is removed at the end. It is in memory if possible, where
// fsync costs nothing.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace yoke {

class TempDir {
 public:
  TempDir() {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    std::string name = has_memory ? "/dev/shm/yoke-XXXXXX" : ::testing::TempDir() + "yoke-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void spill(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace yoke
