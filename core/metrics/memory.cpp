#include "core/metrics/memory.hpp"

#include <fstream>
#include <sstream>
#include <string>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns, in bytes, the value that a file in /proc gives in kB, as in "VmHWM:     12345 kB".
int64_t bytes_of(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value * 1024;
  }
  throw Error(YOKE_INTERNAL, concat("cannot find ", key, " in ", path));
}

}  // namespace

int64_t resident_bytes() {
  return bytes_of("/proc/self/status", "VmRSS:");
}
int64_t private_bytes() {
  return bytes_of("/proc/self/status", "RssAnon:");
}
int64_t peak_resident_bytes() {
  return bytes_of("/proc/self/status", "VmHWM:");
}
int64_t total_memory_bytes() {
  return bytes_of("/proc/meminfo", "MemTotal:");
}

}  // namespace yoke
