// The rule is simple enough to be checked by hand. The runs are interleaved, so two cases are
// compared repeat by repeat: one is slower if it was slower in at least four of five repeats. A
// case that is slower by the median, but not in most repeats, cannot be told apart from the
// fastest, and then the answer is that there is none: on a busy machine, a winner by the median
// changes from comparison to comparison. Memory and traffic hardly vary, so the answer then says
// what the cases cost, and which one to take if their speed counts as a tie. Cases that differ by
// at most 5 % and whose ranges overlap are tied. Among those the least memory wins, and the least
// traffic if the memory differs by at most 5 %. A weighted score of time, memory and traffic was
// rejected, since no weights are right for everybody. Instead, a case that is slower but needs less
// memory is named beside the answer.

#include "core/compare/recommendation.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "core/base/text.hpp"
#include "core/compare/summary.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr int64_t kLeastRepeats = 3;
constexpr double kSame = 0.05;        // fraction by which equal time, memory or traffic may differ
constexpr double kMostSlower = 2;     // factor of time up to which a lean case is worth naming
constexpr double kMostRepeats = 0.8;  // share of the repeats that shows which case is slower
constexpr size_t kMostNamed = 4;      // names of tied cases that a sentence lists

using Cases = std::vector<const CaseResult*>;

double step_time(const CaseResult& c) {
  return median(c.step_ms);
}

bool overlap(const CaseResult& a, const CaseResult& b) {
  return least(a.step_ms) <= most(b.step_ms) && least(b.step_ms) <= most(a.step_ms);
}

// Returns true if `c` was slower than `fastest` in most repeats.
bool is_slower(const CaseResult& c, const CaseResult& fastest) {
  const size_t repeats = std::min(c.step_ms.size(), fastest.step_ms.size());
  size_t slower = 0;
  for (size_t i = 0; i < repeats; ++i) slower += c.step_ms[i] > fastest.step_ms[i] ? 1 : 0;
  return static_cast<double>(slower) >= kMostRepeats * static_cast<double>(repeats);
}

bool is_tied(const CaseResult& c, const CaseResult& fastest) {
  const bool close = step_time(c) <= step_time(fastest) * (1 + kSame);
  return close && (overlap(c, fastest) || !is_slower(c, fastest));
}

// Returns "a, b and c", or the first ones "and 3 more".
std::string names(const Cases& cases) {
  std::vector<std::string> all;
  for (const CaseResult* c : cases) {
    if (all.size() == kMostNamed) break;
    all.push_back(c->spec.name);
  }
  std::string last = all.back();
  if (cases.size() > kMostNamed) {
    last = concat(cases.size() - kMostNamed, " more");
  } else {
    all.pop_back();
  }
  return all.empty() ? last : join(all) + " and " + last;
}

std::string time_text(double ms) {
  return string_printf("%.3g ms", ms);
}
std::string size_text(double bytes) {
  return bytes_text(static_cast<uint64_t>(bytes));
}

std::string memory_text(const CaseResult& c) {
  return size_text(peak_memory(c));
}

// Returns each case with the reason why it is not eligible.
std::string reasons(const Cases& left_out) {
  std::vector<std::string> all;
  for (const CaseResult* c : left_out) {
    const char* reason = !c->failure.empty() ? "failed"
                         : c->by_design      ? "differs by design"
                         : !c->passed()      ? "did not pass"
                                             : "has no times";
    all.push_back(c->spec.name + " (" + reason + ")");
  }
  return join(all);
}

// A case that differs by design trains another model, so its speed cannot be weighed against the
// others'.
bool eligible(const CaseResult& c) {
  return c.passed() && !c.by_design && c.timed();
}

bool has_memory(const CaseResult& c) {
  return !std::isnan(peak_memory(c));
}

// Returns how much longer the steps of `c` take than those of `best`: "1.4 times as long".
std::string slower(const CaseResult& c, const CaseResult& best) {
  return string_printf("%.2f times as long", step_time(c) / step_time(best));
}

// Moves the cases with about the least value to the front, and returns how many they are. Cases
// with an unknown value (NaN) stay behind, unless all are unknown. Both parts keep their order.
size_t put_least_first(const Cases::iterator begin,
                       const Cases::iterator end,
                       double (*value)(const CaseResult&)) {
  double smallest = INFINITY;
  for (auto it = begin; it != end; ++it) {
    if (!std::isnan(value(**it))) smallest = std::min(smallest, value(**it));
  }
  if (std::isinf(smallest)) return static_cast<size_t>(end - begin);
  const auto middle = std::stable_partition(
      begin, end, [&](const CaseResult* c) { return value(*c) <= smallest * (1 + kSame); });
  return static_cast<size_t>(middle - begin);
}

// Cheapest is the result of put_cheapest_first().
struct Cheapest {
  size_t lean = 0;   // number of cases with about the least memory
  size_t quiet = 0;  // number of those that also communicate about the least
};

// Moves the cases with about the least memory to the front and, of those, the ones with about the
// least traffic.
Cheapest put_cheapest_first(Cases& cases) {
  const auto begin = cases.begin();
  const size_t lean = put_least_first(begin, cases.end(), peak_memory);
  return {lean, put_least_first(begin, begin + static_cast<ptrdiff_t>(lean), step_traffic)};
}

// Returns the fastest case with about the least memory among those that take up to twice as long as
// the fastest; NULL if it needs about as much as one of `rivals`. `cases` is sorted by time.
const CaseResult* find_leanest(const Cases& cases, const Cases& rivals) {
  Cases lean;
  for (const CaseResult* c : cases)
    if (step_time(*c) <= kMostSlower * step_time(*cases[0]) && has_memory(*c)) lean.push_back(c);
  if (lean.empty()) return nullptr;
  put_least_first(lean.begin(), lean.end(), peak_memory);
  const CaseResult* const leanest = lean[0];
  const bool less = std::all_of(rivals.begin(), rivals.end(), [&](const CaseResult* c) {
    return has_memory(*c) && peak_memory(*leanest) < peak_memory(*c) * (1 - kSame);
  });
  return less ? leanest : nullptr;
}

// Returns " and communicates the least" if that is why tied[0] is preferred; else "".
std::string traffic_text(const Cases& tied) {
  const double best = step_traffic(*tied[0]);
  const bool decides = std::any_of(tied.begin(), tied.end(), [&](const CaseResult* c) {
    return step_traffic(*c) > best * (1 + kSame);
  });
  return decides ? " and communicates the least (" + bytes_text(static_cast<uint64_t>(best)) +
                       " per step)"
                 : "";
}

// Returns "100.0 MiB and 4.0 KiB for a, 150.0 MiB and 4.0 KiB for b".
std::string costs_text(const Cases& cases) {
  const auto text = [](double bytes) {
    return std::isnan(bytes) ? "unknown" : bytes_text(static_cast<uint64_t>(bytes));
  };
  std::vector<std::string> all;
  for (const CaseResult* c : cases) {
    if (all.size() == kMostNamed) break;
    all.push_back(text(peak_memory(*c)) + " and " + text(step_traffic(*c)) + " for " +
                  c->spec.name);
  }
  return join(all);
}

// Returns which of the cases that cannot be told apart to take if their speed counts as a tie, why,
// and what each of them costs.
std::string if_tied_text(const CaseResult* choice, Cases unclear) {
  const Cheapest cheapest = put_cheapest_first(unclear);
  const std::string costs =
      " Memory per rank and traffic per step are " + costs_text(unclear) + ".";
  if (choice == nullptr)
    return " Take any of them: their memory and traffic are about equal, too." + costs;
  const bool memory = cheapest.lean < unclear.size(), traffic = cheapest.quiet < cheapest.lean;
  const char* reason = !memory ? "communicates the least, and all of them need about as much memory"
                       : cheapest.lean == 1 ? "needs the least memory"
                       : traffic
                           ? "communicates the least of those that need about the least memory"
                           : "has the shortest median of those that need about the least memory";
  return " If their speed counts as a tie, take " + choice->spec.name + ": it " + reason + "." +
         costs;
}

// Returns the cases that are tied or undecided, in the order of `cases`.
Cases unclear_of(const Recommendation& answer, const Cases& cases) {
  Cases unclear;
  for (const CaseResult* c : cases)
    if (std::count(answer.tied.begin(), answer.tied.end(), c) +
            std::count(answer.undecided.begin(), answer.undecided.end(), c) >
        0)
      unclear.push_back(c);
  return unclear;
}

// Returns which of the cases that cannot be told apart needs less than the others, or communicates
// less if they need about as much; NULL if there is none.
const CaseResult* find_if_tied(Cases unclear) {
  const Cheapest cheapest = put_cheapest_first(unclear);
  const bool differ = cheapest.lean < unclear.size() || cheapest.quiet < cheapest.lean;
  return differ ? unclear[0] : nullptr;
}

// Returns why no case is recommended, and what the cases cost. `cases` is sorted by time.
std::string undecided_text(const Recommendation& answer, const Cases& cases) {
  const Cases unclear = unclear_of(answer, cases);
  double spread = 1;
  for (const CaseResult* c : unclear)
    spread = std::max(spread, most(c->step_ms) / least(c->step_ms));
  std::string text = "no clear winner: " + names(unclear) + " cannot be told apart by speed.";
  text += if_tied_text(answer.if_tied, unclear);
  text +=
      " Which one is slower changes from repeat to repeat, and the times of one case vary by up "
      "to " +
      string_printf("%.2f times. ", spread) + cases[0]->spec.name + " has the shortest median, " +
      time_text(step_time(*cases[0])) + " per step";
  Cases slower;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(slower), [&](const CaseResult* c) {
    return std::count(unclear.begin(), unclear.end(), c) == 0;
  });
  if (!slower.empty())
    text +=
        "; " + names(slower) + (slower.size() == 1 ? " is" : " are") + " slower in most repeats";
  return text + ".";
}

// Returns the range of a value over the cases: "100.0 MiB", or "100.0 MiB to 118.0 MiB". At least
// one case must have a known value.
std::string range_text(const Cases& cases,
                       double (*value)(const CaseResult&),
                       std::string (*text)(double) = size_text) {
  double low = INFINITY, high = 0;
  for (const CaseResult* c : cases) {
    low = std::fmin(low, value(*c));
    high = std::fmax(high, value(*c));
  }
  return text(low) == text(high) ? text(low) : text(low) + " to " + text(high);
}

// Returns why tied[0] is preferred to the cases that are as fast, and what that costs.
std::string tie_text(const Cases& tied) {
  const CaseResult& best = *tied[0];
  const Cases others(tied.begin() + 1, tied.end());
  const std::string takes = others.size() == 1 ? names(others) + " takes " : "they take ";
  const std::string tie = "it is as fast as " + names(others) + " (" + time_text(step_time(best)) +
                          " per step; " + takes + range_text(others, step_time, time_text) +
                          "; the repeats do not separate them)";
  if (!has_memory(best)) return tie + "; the memory of none of them is known";
  Cases known;
  std::copy_if(others.begin(), others.end(), std::back_inserter(known), [](const CaseResult* c) {
    return has_memory(*c);
  });
  if (known.empty()) return tie + ", and the others have not reported their memory";
  const bool equal = std::all_of(known.begin(), known.end(), [&](const CaseResult* c) {
    return peak_memory(*c) <= peak_memory(best) * (1 + kSame);
  });
  if (equal) {
    return tie + ", needs about as much memory (" + memory_text(best) + " per rank)" +
           traffic_text(tied);
  }
  const std::string others_name = known.size() == 1 ? known[0]->spec.name : "they";
  std::string text = tie + " and needs " + memory_text(best) + " per rank; " + others_name +
                     (known.size() == 1 ? " needs " : " need ") + range_text(known, peak_memory);
  const bool more = std::any_of(known.begin(), known.end(), [&](const CaseResult* c) {
    return step_traffic(best) > step_traffic(*c) * (1 + kSame);
  });
  if (more)
    text += ". It communicates " + range_text({&best}, step_traffic) + " per step, and " +
            others_name + " " + range_text(known, step_traffic);
  return text;
}

// Returns which case needs less memory than `best`, and what that costs; "" if there is none.
std::string leanest_text(const Recommendation& answer, const CaseResult& best) {
  if (answer.leanest == nullptr) return "";
  return " If memory is short, take " + answer.leanest->spec.name + ": it needs " +
         memory_text(*answer.leanest) +
         (has_memory(best) ? " instead of " + memory_text(best) : "") +
         " per rank, and its steps take " + slower(*answer.leanest, best) + ".";
}

std::string text_of(const Recommendation& answer, const Cases& cases) {
  const CaseResult& best = *answer.tied[0];
  const std::string ranks =
      answer.ranks > 0 ? concat("With ", answer.ranks, answer.ranks == 1 ? " rank" : " ranks") : "";
  if (answer.choice() == nullptr) {
    const std::string text = undecided_text(answer, cases) + leanest_text(answer, *cases[0]);
    return ranks.empty() ? "N" + text.substr(1) : ranks + ", " + text;
  }
  std::string text = (ranks.empty() ? "Take " : ranks + ", take ") + best.spec.name + ": ";
  if (cases.size() == 1) return text + "no other case can be compared with it.";
  if (answer.tied.size() > 1) {
    text += tie_text(answer.tied);
  } else {
    text += "it is the fastest, " + time_text(step_time(best)) + " per step; " +
            cases[1]->spec.name + " takes " + slower(*cases[1], best);
  }
  return text + "." + leanest_text(answer, best);
}

Recommendation recommend(Cases cases, int ranks) {
  std::stable_sort(cases.begin(), cases.end(), [](const CaseResult* a, const CaseResult* b) {
    return step_time(*a) < step_time(*b);
  });
  Recommendation answer;
  answer.ranks = ranks;
  for (const CaseResult* c : cases) {
    if (is_tied(*c, *cases[0])) {
      answer.tied.push_back(c);
    } else if (!is_slower(*c, *cases[0])) {
      answer.undecided.push_back(c);
    }
  }
  put_cheapest_first(answer.tied);
  const Cases unclear = unclear_of(answer, cases);
  if (answer.choice() == nullptr) answer.if_tied = find_if_tied(unclear);
  answer.leanest = find_leanest(cases, unclear);
  answer.text = text_of(answer, cases);
  return answer;
}

}  // namespace

std::vector<Recommendation> recommendations(const Comparison& comparison) {
  if (comparison.plan.repeats < kLeastRepeats) return {};
  std::map<int, Cases> by_ranks;
  Cases external;
  size_t count = 0;
  for (const CaseResult& c : comparison.cases) {
    if (!eligible(c)) continue;
    (c.runs[0].external() ? external : by_ranks[c.runs[0].world()]).push_back(&c);
    ++count;
  }
  if (count < 2) return {};
  if (by_ranks.empty()) return {recommend(external, 0)};
  const bool one_group = by_ranks.size() == 1;
  std::vector<Recommendation> all;
  for (auto& [ranks, cases] : by_ranks) {
    if (one_group) cases.insert(cases.end(), external.begin(), external.end());
    all.push_back(recommend(cases, one_group ? 0 : ranks));
  }
  return all;
}

std::set<const CaseResult*> advised(const std::vector<Recommendation>& answers) {
  std::set<const CaseResult*> cases;
  for (const Recommendation& answer : answers)
    for (const CaseResult* c : {answer.choice(), answer.if_tied, answer.leanest})
      if (c != nullptr) cases.insert(c);
  return cases;
}

std::vector<std::string> recommendation_text(const Comparison& comparison) {
  std::vector<std::string> lines, times;
  bool clear = true;
  for (const Recommendation& answer : recommendations(comparison)) {
    lines.push_back(answer.text);
    times.push_back(time_text(step_time(*answer.tied[0])) +
                    concat(" with ", answer.ranks, answer.ranks == 1 ? " rank" : " ranks"));
    clear = clear && answer.choice() != nullptr;
  }
  if (clear && lines.size() > 1)
    lines.push_back("The steps of these cases take " + join(times) + ".");
  if (!clear)
    lines.push_back(concat("Compare again on a quieter machine, or with --repeats ",
                           2 * comparison.plan.repeats + 1,
                           "."));
  if (lines.empty()) {
    const int64_t repeats = comparison.plan.repeats;
    return {repeats < kLeastRepeats
                ? concat("No case is recommended: ",
                         repeats,
                         repeats == 1 ? " repeat is" : " repeats are",
                         " too few to tell the times apart; use --repeats ",
                         kLeastRepeats,
                         " or more.")
                : "No case is recommended, because fewer than two cases passed with known times."};
  }
  Cases left_out;
  for (const CaseResult& c : comparison.cases)
    if (!eligible(c)) left_out.push_back(&c);
  if (!left_out.empty()) lines.push_back("Not considered: " + reasons(left_out) + ".");
  return lines;
}

}  // namespace yoke::compare
