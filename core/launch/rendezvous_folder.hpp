// The private folder through which ranks of one machine find each other.
#pragma once

#include <string>

namespace yoke {

// Made with mode 0700 below $TMPDIR (else /tmp), removed with all it contains on destruction.
class RendezvousFolder {
 public:
  RendezvousFolder();  // throws Error(RESOURCE_EXHAUSTED) if it cannot be made
  ~RendezvousFolder();
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace yoke
