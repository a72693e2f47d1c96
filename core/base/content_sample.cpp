// Contents are sampled: a different data file of the same size, or an older copy of the weights,
// differs nearly everywhere, and reading all of it would delay every start by minutes.
#include "core/base/content_sample.hpp"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/base/crc32c.hpp"
#include "core/base/files.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPlaces = 64;
constexpr size_t kMaxFiles = kPlaces / 2;  // at least two places of each file are read
constexpr uint64_t kPlaceBytes = 64 * 1024;

// Continues a checksum with samples at `places` places of a file, the first and last bytes
// included.
uint32_t sample(uint32_t crc, const std::string& path, uint64_t places) {
  const File file = File::open_for_reading(path);
  const uint64_t size = file.size();
  std::vector<char> buffer(std::min(size, kPlaceBytes));
  if (buffer.empty()) return crc;
  const uint64_t last = size - buffer.size();
  for (uint64_t i = 0; i < places; ++i) {
    const uint64_t at = places > 1 ? last / (places - 1) * i : 0;
    file.read_at(buffer.data(), buffer.size(), i + 1 == places ? last : at);
    crc = crc32c(crc, buffer.data(), buffer.size());
    if (last == 0) break;
  }
  return crc;
}

}  // namespace

std::string content_sample(const std::string& path) {
  std::vector<std::string> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  return content_sample(files);
}

std::string content_sample(const std::vector<std::string>& files) {
  uint64_t bytes = 0;
  uint32_t crc = 0;
  const size_t stride = (files.size() + kMaxFiles - 1) / kMaxFiles;
  for (size_t i = 0; i < files.size(); ++i) {
    const uint64_t size = fs::file_size(files[i]);
    bytes += size;
    if (files.size() > kMaxFiles) crc = crc32c(crc, &size, sizeof size);
    if (i % stride == 0) crc = sample(crc, files[i], std::max<uint64_t>(2, kPlaces / files.size()));
  }
  return concat(bytes, " bytes, sample ") + string_printf("%08x", crc);
}

}  // namespace yoke
