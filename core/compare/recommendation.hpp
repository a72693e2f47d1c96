// Answers the question of a comparison: which case should I take? Does not need LibTorch.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/compare/comparison.hpp"

namespace yoke::compare {

// Recommendation is the answer among the cases that have the same number of ranks. Only cases that
// passed, agree with the reference and have times are considered. Pointers are to cases of the
// comparison.
struct Recommendation {
  int ranks = 0;  // number of ranks of these cases; 0 = all cases
  // The case with the shortest median step, and those that are as fast: their medians are longer by
  // at most 5 %, and their ranges overlap or they were not slower in most repeats. The recommended
  // one comes first: it needs the least memory or, if memory is about equal, communicates the
  // least.
  std::vector<const CaseResult*> tied;
  // Cases whose medians are longer by more than 5 %, but which were not slower than the fastest in
  // at least four of five repeats. If there are any, no case is recommended.
  std::vector<const CaseResult*> undecided;
  // If no case is recommended: the one of `tied` and `undecided` to take if their speed counts as
  // a tie, because it needs the least memory or, if memory is about equal, communicates the least.
  // NULL if a case is recommended, or if they need and communicate about as much.
  const CaseResult* if_tied = nullptr;
  // The fastest case with about the least memory, within 5 %, among those whose steps take up to
  // twice as long. NULL unless it needs less than all of `tied` and `undecided` by more than 5 %.
  const CaseResult* leanest = nullptr;
  std::string text;  // the answer with its reasons, in sentences

  // Returns the recommended case; NULL = the repeats do not show which one is the fastest.
  const CaseResult* choice() const { return undecided.empty() ? tied.front() : nullptr; }
};

// Returns one recommendation for each number of ranks, in ascending order; empty if the comparison
// has fewer than two cases with times, or fewer than three repeats. External commands, whose ranks
// are unknown, are considered only if all other cases have the same number of ranks.
std::vector<Recommendation> recommendations(const Comparison& comparison);

// Returns the cases that the answers say to take, if only under a condition.
std::set<const CaseResult*> advised(const std::vector<Recommendation>& answers);

// Returns the answers as lines of text, or why there is none. Also names the cases that were left
// out because they failed or did not pass.
std::vector<std::string> recommendation_text(const Comparison& comparison);

}  // namespace yoke::compare
