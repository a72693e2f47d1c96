// A file for state that has left memory.
#pragma once

#include <cstdint>
#include <string>

namespace yoke::deepspeed_stub {

// Throws Error(FAILED_PRECONDITION) unless `folder` exists, can be written to, and is on a disk. In
// a file system in memory (tmpfs, ramfs) files would take the memory that offload is to save. key:
// name of the key for the message.
void require_disk_folder(const std::string& folder, const std::string& key);

// A file without a name, which only this process can open. Its space is reserved and reads as
// zeros. The kernel frees it when the process ends, however it ends.
class StateFile {
 public:
  // Throws Error(RESOURCE_EXHAUSTED), with the bytes that are needed and free, if the space is not
  // there, and Error(FAILED_PRECONDITION) if the folder cannot be used.
  StateFile(const std::string& folder, int64_t bytes);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& folder() const { return folder_; }

 private:
  void reserve(int64_t bytes) const;

  const std::string folder_;
  int descriptor_ = -1;
};

}  // namespace yoke::deepspeed_stub
