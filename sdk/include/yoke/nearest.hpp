// "Did you mean" suggestions and lists of words for messages. Does not need LibTorch.
//
//   "unknown key '" + key + "'" + did_you_mean(key, keys)
//   unknown key 'train.step'; did you mean 'train.steps'?
//
// All functions are pure and may be called from any thread. Words are compared byte by byte:
// capital letters differ from small ones.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Returns the least number of edits that turn a into b. An edit inserts, deletes or replaces one
// letter, or swaps two neighbours, and no letter is edited twice (the optimal string alignment
// distance). Time a.size() * b.size(), memory b.size().
inline int edit_distance(std::string_view a, std::string_view b) {
  // Dynamic programming: table[i][j] is the distance of the first i letters of a to the first j
  // letters of b. A swap needs row i - 2, so three rows are kept: i - 2, i - 1 and i.
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

// Returns the candidate that `name` was probably meant to be, the first one if several are equally
// near; "" if none is near enough.
//
//   nearest("trian.lr", {"train.lr", "train.steps"})   "train.lr"
//   nearest("fp16", {"fp32", "fp64"})                  ""
inline std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  // At most a third of the letters may be wrong: a far-fetched suggestion is worse than none. The
  // bound then decreases to the distance of the best candidate so far, which a later one must beat.
  int bound = std::max(1, static_cast<int>(name.size()) / 3);
  // This computes one distance for each candidate, which is fast enough for a few hundred words.
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(name, candidate);
    if (distance > bound || (distance == bound && !best.empty())) continue;
    best = candidate;
    bound = distance;
  }
  return best;
}

// Returns the end of a message, "; did you mean 'x'?", or "" if no candidate is near. The text
// before it must not end with a full stop.
inline std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string best = nearest(name, candidates);
  return best.empty() ? "" : "; did you mean '" + best + "'?";
}

// Returns the words as one string, "a, b, c", or with a different separator. An empty list
// gives "".
inline std::string join(const std::vector<std::string>& words, std::string_view separator = ", ") {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += separator;
    text += word;
  }
  return text;
}

}  // namespace yoke
