// The private folder in which the ranks of one machine find each other.
#pragma once

#include <string>

#include "core/base/file_descriptor.hpp"

namespace yoke {

// Creates a folder with mode 0700 below $TMPDIR, or /tmp if that is not set, and removes it with
// its contents on destruction. If the process is killed, the next launcher of the same user removes
// it.
class RendezvousFolder {
 public:
  // Also removes stale folders. Throws Error(RESOURCE_EXHAUSTED) if the folder cannot be created.
  RendezvousFolder();
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor lock_;  // held for as long as the launcher lives
};

}  // namespace yoke
