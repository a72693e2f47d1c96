// Operations on files and folders. Their errors name the path. A few of them make changes durable,
// as checkpoints need.
//
// Every function throws yoke::Error with a text that names the path, and one of these codes:
//   YOKE_NOT_FOUND            the path, or a folder above it, does not exist
//   YOKE_FAILED_PRECONDITION  permission denied, or a read-only file system
//   YOKE_RESOURCE_EXHAUSTED   disk full, quota, memory, or too many open files
//   YOKE_DATA_LOSS            an I/O error of the device; a file that is too short, too long or not
//                             a regular file
//   YOKE_INTERNAL             any other error, such as a file that exists already
// All functions may be called from any thread. Two threads must not write or remove the same path
// at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace yoke {

// Throws Error with the code that the list above gives for `error_number` (an errno). The text is
// `what`, followed by the system's description of the error.
[[noreturn]] void throw_errno(const std::string& what, int error_number);

// An open regular file. Each read and write names its offset, so several threads may read from one
// File, or write to ranges of it that do not overlap. Closing and moving need exclusive access.
class File {
 public:
  // Opens an existing file. DATA_LOSS if the path is a folder, a pipe or a device.
  static File open_for_reading(const std::string& path);
  // Opens an existing file to overwrite parts of it. Does not follow a symbolic link.
  static File open_for_writing(const std::string& path);
  // Creates a file. INTERNAL if the path exists.
  static File create(const std::string& path);

  ~File();  // closes; errors are lost, so a writer calls close() first
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const;  // current size in bytes

  // Reads exactly `size` bytes at `offset`. DATA_LOSS if the file ends before that.
  void read_at(void* dst, size_t size, uint64_t offset) const;
  // Writes exactly `size` bytes at `offset`; the file grows if necessary.
  void write_at(const void* src, size_t size, uint64_t offset);
  // Sets the size and allocates the disk space, so that a full disk is reported before anything is
  // written. Where the file system cannot allocate, only the size is set.
  void reserve(uint64_t size);

  // Returns when the contents, and the metadata needed to read them, are on the device. Do not
  // retry after an error: the kernel may have dropped the data. Write a new file instead.
  void sync_data();
  // Does the same for the contents and all metadata.
  void sync();
  // Closes and reports a write error that only shows up now, as on network file systems. No other
  // function may be called afterwards.
  void close();

 private:
  File(std::string path, int fd);
  std::string path_;
  int fd_;
};

// An exclusive lock on a folder, in the form of a locked file `.lock` inside it. The lock is
// released when the object is destroyed or the process dies. It excludes other processes as well as
// other objects of this process. On a file system that has no locks it excludes nobody.
class FolderLock {
 public:
  // Tries once and does not wait; held() returns the outcome. Throws if `.lock` cannot be created.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Returns false if another holder may be changing the folder. The caller must leave the folder
  // alone, and either skip its work, if the holder does the same work, or report that the folder is
  // in use. It must not wait, because a lock may be held until a run ends.
  bool held() const { return fd_ >= 0; }
  // Returns false if the file system has no locks. Then held() is true for every holder.
  bool exclusive() const { return exclusive_; }

 private:
  int fd_;
  bool exclusive_ = true;
};

// Creates the folder and all missing folders above it, and syncs the parent of each one it created.
// Does nothing if the folder exists. FAILED_PRECONDITION if a part of the path is not a folder.
void make_folders(const std::string& path);
// Creates a folder in an existing one. INTERNAL if the path exists. Syncs nothing.
void make_folder(const std::string& path);

// Returns when the folder's entries (files created, renamed or removed in it) are on the device. On
// a file system that cannot sync folders it returns at once: see make_path_durable().
void sync_folder(const std::string& path);

// Syncs the folder and every folder above it, so that the path survives a power failure whichever
// process created its parts. Returns "", or a sentence for a warning if the path may be lost
// nevertheless: it is in memory (tmpfs), its file system cannot sync folders, or this user can
// write to a folder above it but not open it. Throws Error if syncing fails.
std::string make_path_durable(const std::string& folder);

// Renames a file or folder. `to` is replaced if it is a file or an empty folder. Syncs nothing.
void rename_path(const std::string& from, const std::string& to);
// Exchanges two paths atomically. FAILED_PRECONDITION if the file system cannot do that (NFS).
void exchange_paths(const std::string& a, const std::string& b);

// Removes a file. Does nothing if it does not exist.
void remove_file(const std::string& path);

// Removes a file, or a folder with all it contains. Does nothing if the path does not exist. Does
// not follow symbolic links.
void remove_tree(const std::string& path);

// Returns the bytes that this user may still write to the file system of `folder`; UINT64_MAX if
// the file system does not report its size.
uint64_t free_bytes(const std::string& folder);

// Returns the whole contents of a regular file. DATA_LOSS if it has more than `max_bytes`.
std::string read_text(const std::string& path, uint64_t max_bytes);

// Creates a file with this content and syncs it. INTERNAL if the path exists. The folder is not
// synced: call sync_folder() if the file must survive a crash of the machine.
void create_text(const std::string& path, std::string_view text);

// Replaces the file, or creates it, atomically: after a crash the path has the old content or the
// new one, never a part. Writes a temporary file beside it, renames it and syncs the folder.
void replace_text(const std::string& path, std::string_view text);

// Returns true if the path exists, and waits up to three seconds for it: a machine sees a file that
// another one has made late, because network file systems cache their folders.
bool exists_soon(const std::string& path);

}  // namespace yoke
