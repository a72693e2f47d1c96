// A file of data.path or eval.path, mapped into memory.
#pragma once

#include <cstddef>
#include <string>

namespace yoke {

// A whole file, mapped read-only, so that all ranks of one machine share its pages. Immutable; may
// be used from any thread.
class MappedFile {
 public:
  // `key` is the key of the run file that names the file, for messages. Throws Error: NOT_FOUND
  // with the nearest names, and for novels.txt how to get the demo text; or INVALID_ARGUMENT.
  explicit MappedFile(const std::string& path, const std::string& key = "data.path");
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The bytes of the file; NULL if it is empty.
  const unsigned char* data() const { return static_cast<const unsigned char*>(data_); }
  size_t size() const { return size_; }
  // Returns `data.path = "x"`, with which every message about the file starts.
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace yoke
