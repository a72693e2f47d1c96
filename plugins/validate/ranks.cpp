#include "plugins/validate/ranks.hpp"

#include <algorithm>

namespace yoke::validate {

std::vector<std::vector<uint64_t>> Ranks::gather(const std::vector<uint64_t>& own) const {
  const auto count = static_cast<int64_t>(own.size());
  std::vector<uint64_t> all(own.size() * static_cast<size_t>(comm_.size()));
  comm_
      .all_gather({all.data(), static_cast<int64_t>(all.size()), YOKE_I64},
                  ConstSpan(own.data(), count, YOKE_I64))
      .wait();
  std::vector<std::vector<uint64_t>> lists;
  for (auto at = all.begin(); at != all.end(); at += count) lists.emplace_back(at, at + count);
  lists.resize(static_cast<size_t>(comm_.size()));
  return lists;
}

// The texts are padded to the longest one.
std::vector<std::string> Ranks::gather(const std::string& own) const {
  std::vector<uint64_t> sizes;
  for (const auto& size : gather(std::vector<uint64_t>{own.size()})) sizes.push_back(size[0]);
  const uint64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::string padded = own, all(longest * sizes.size(), '\0');
  padded.resize(longest);
  comm_
      .all_gather({all.data(), static_cast<int64_t>(all.size()), YOKE_U8},
                  ConstSpan(padded.data(), static_cast<int64_t>(longest), YOKE_U8))
      .wait();
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    texts.push_back(all.substr(rank * longest, sizes[rank]));
  return texts;
}

}  // namespace yoke::validate
