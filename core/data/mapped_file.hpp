// The file of data.path, mapped into memory.
#pragma once

#include <cstddef>
#include <string>

namespace yoke {

// Returns `data.path = "x"`, with which every message about the file starts.
std::string data_path_is(const std::string& path);

// A whole file, mapped read-only, so that all ranks of one machine share its pages. Immutable; may
// be used from any thread.
class MappedFile {
 public:
  // Throws Error: NOT_FOUND, which explains how to get the demo text, or INVALID_ARGUMENT.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The bytes of the file; NULL if it is empty.
  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace yoke
