// The private folder through which ranks of one machine find each other.
#pragma once

#include <string>

#include "core/base/file_descriptor.hpp"

namespace yoke {

// Made with mode 0700 below $TMPDIR (else /tmp), removed with all it contains on destruction; if
// the process is killed, by the next one of the same user.
class RendezvousFolder {
 public:
  RendezvousFolder();  // throws Error(RESOURCE_EXHAUSTED) if it cannot be made
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  FileDescriptor lock_;  // held as long as the process lives
};

}  // namespace yoke
