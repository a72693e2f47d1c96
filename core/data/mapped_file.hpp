// The file of data.path in memory.
#pragma once

#include <cstddef>
#include <string>

namespace yoke {

// `data.path = "x"`, which begins every message about the file.
std::string data_path_is(const std::string& path);

// A whole file, mapped read-only; ranks of one machine share its pages.
class MappedFile {
 public:
  // Throws Error: NOT_FOUND saying how to get the demo text, INVALID_ARGUMENT.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace yoke
