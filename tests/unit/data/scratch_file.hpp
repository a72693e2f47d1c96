// A file in the temporary folder. The destructor removes it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace yoke {

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& content, const std::string& suffix = ".txt") {
    std::string name =
        (std::filesystem::temp_directory_path() / ("yoke_data_XXXXXX" + suffix)).string();
    const int fd = ::mkstemps(name.data(), static_cast<int>(suffix.size()));
    if (fd < 0) throw std::runtime_error("mkstemps failed for " + name);
    ::close(fd);
    path_ = name;
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace yoke
