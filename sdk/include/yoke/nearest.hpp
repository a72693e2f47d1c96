// "Did you mean ...?": the nearest known word, and lists of words, for messages. No LibTorch.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
inline int edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are alive: swaps look back by two.
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// The candidate that `name` was probably meant to be; "" if none is close.
inline std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  // A third of the letters may be wrong, not more: a far-fetched hint is worse than none.
  int bound = std::max(1, static_cast<int>(name.size()) / 3);
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance > bound || (distance == bound && !best.empty())) continue;
    best = candidate;
    bound = distance;
  }
  return best;
}

// "; did you mean 'x'?", or "".
inline std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string best = nearest(name, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

// "a, b, c"
inline std::string join(const std::vector<std::string>& words, std::string_view separator = ", ") {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

}  // namespace yoke
