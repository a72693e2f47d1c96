// Files and folders with errors that name the path, and the few durable operations a checkpoint
// needs. Every function throws Error: NOT_FOUND, FAILED_PRECONDITION (not allowed),
// RESOURCE_EXHAUSTED (disk full, quota), DATA_LOSS (the device failed, a file is too short), else
// INTERNAL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

[[noreturn]] void throw_errno(const std::string& what, int error_number);

// An open file. All transfers are positional, so one File may be read by several threads.
class File {
 public:
  static File open_for_reading(const std::string& path);
  static File open_for_writing(const std::string& path);  // must exist
  static File create(const std::string& path);            // must not exist
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const;
  void read_at(void* dst, size_t size, uint64_t offset) const;
  void write_at(const void* src, size_t size, uint64_t offset);
  void reserve(
      uint64_t size);  // takes the disk space now, so that a full disk shows before writing
  void sync_data();    // contents, and what is needed to read them
  void sync();
  void close();  // reports what the destructor must swallow

 private:
  File(std::string path, int fd);
  std::string path_;
  int fd_;
};

// A lock on a folder, held while this object lives or until the process dies.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);  // does not wait; see held()
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return fd_ >= 0; }

 private:
  int fd_;
};

void make_folders(const std::string& path);  // like mkdir -p, and syncs the parents of what it made
void sync_folder(const std::string& path);
void remove_tree(const std::string& path);
uint64_t free_bytes(const std::string& folder);  // UINT64_MAX if the file system does not say

std::string read_text(const std::string& path, uint64_t max_bytes);
void create_text(const std::string& path, std::string_view text);   // synced; must not exist
void replace_text(const std::string& path, std::string_view text);  // old or new text, never half

}  // namespace yoke
