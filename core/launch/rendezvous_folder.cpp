#include "core/launch/rendezvous_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "yoke/error.hpp"

namespace yoke {

RendezvousFolder::RendezvousFolder() {
  const char* tmp = std::getenv("TMPDIR");
  path_ = std::string(tmp != nullptr && tmp[0] == '/' ? tmp : "/tmp") + "/yoke-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {  // mode 0700
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                "cannot make a folder " + path_ + ": " + std::strerror(errno) +
                    "; set TMPDIR to a folder that you may write to");
  }
}

RendezvousFolder::~RendezvousFolder() {
  std::error_code ignored;  // nothing depends on it any more
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace yoke
