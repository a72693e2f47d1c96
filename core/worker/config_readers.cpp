#include "core/worker/config_readers.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "core/config/options.hpp"
#include "yoke/nearest.hpp"

namespace yoke {
namespace {

std::vector<ConfigReader> readers_of(const LoadedBackend& backend) {
  std::vector<ConfigReader> readers;
  for (const OptionInfo& info : option_infos(backend.description())) {
    if (info.type == YOKE_OPTION_FILE && !info.choices.empty())
      readers.push_back({backend.name(), info.key, join(info.choices)});
  }
  return readers;
}

}  // namespace

bool ConfigReader::accepts(const std::string& file) const {
  const std::string name = std::filesystem::path(file).filename();
  for (size_t begin = 0; begin < patterns.size();) {
    const size_t end = std::min(patterns.find(", ", begin), patterns.size());
    if (::fnmatch(patterns.substr(begin, end - begin).c_str(), name.c_str(), 0) == 0) return true;
    begin = end + 2;
  }
  return false;
}

std::vector<ConfigReader> config_readers(const std::string& backend) {
  const auto dirs = search_dirs(SearchSettings::current());
  if (!backend.empty()) return readers_of(load_backend(find_backend(backend, dirs)));
  std::vector<ConfigReader> all;
  for (const Candidate& candidate : list_candidates(dirs)) {
    if (!candidate.problem.empty() || !candidate.shadowed_by.empty()) continue;
    try {
      const auto some = readers_of(load_backend(candidate.path));
      all.insert(all.end(), some.begin(), some.end());
    } catch (const Error&) {
      // Skip it; `yoke backends list` reports what is wrong with it.
    }
  }
  return all;
}

}  // namespace yoke
