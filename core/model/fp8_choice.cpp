#include "core/model/fp8_choice.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kSide = 16;

// Returns whether the parts of `entry` are consecutive parts of `name`.
bool names(const std::string& entry, const std::string& name) {
  return !entry.empty() && ("." + name + ".").find("." + entry + ".") != std::string::npos;
}

// Returns the names of matrices in all lengths that an entry may have, from the last part on:
// "q_proj", "self_attn.q_proj" and so on.
std::vector<std::string> possible_entries(const std::vector<NamedMatrix>& matrices) {
  std::set<std::string> entries;
  for (const NamedMatrix& m : matrices) {
    for (size_t dot = m.name.size(); dot != std::string::npos && dot > 0;) {
      dot = m.name.rfind('.', dot - 1);
      entries.insert(dot == std::string::npos ? m.name : m.name.substr(dot + 1));
    }
  }
  return {entries.begin(), entries.end()};
}

std::string nearest_sides(int64_t side) {
  if (side % kSide == 0) return concat(side);
  const int64_t below = side - side % kSide;
  return below == 0 ? concat(kSide) : concat(below, " or ", below + kSide);
}

// Describes a matrix that cannot be multiplied in fp8, and how many more there are of this kind.
std::string unfit(const NamedMatrix& m, size_t others) {
  return concat("precision.product = \"fp8\": ",
                m.name,
                others == 0 ? "" : concat(" and ", others, " more like it"),
                " is [",
                m.rows,
                ", ",
                m.columns,
                "]") +
         concat("; allowed: sides that are multiples of 16 (nearest: [",
                nearest_sides(m.rows),
                ", ",
                nearest_sides(m.columns),
                "]), or the name in precision.fp8_skip");
}

}  // namespace

std::vector<bool> choose_fp8(const std::vector<NamedMatrix>& matrices,
                             const std::vector<std::string>& skip) {
  std::vector<std::string> faults;
  for (const std::string& entry : skip) {
    if (std::any_of(matrices.begin(), matrices.end(), [&](const NamedMatrix& m) {
          return names(entry, m.name);
        }))
      continue;
    faults.push_back("precision.fp8_skip: \"" + entry + "\" names no matrix" +
                     did_you_mean(entry, possible_entries(matrices)));
  }
  std::vector<bool> chosen;
  std::map<std::string, std::vector<const NamedMatrix*>> unfit_kinds;  // key: last part and sides
  for (const NamedMatrix& m : matrices) {
    chosen.push_back(std::none_of(
        skip.begin(), skip.end(), [&](const std::string& entry) { return names(entry, m.name); }));
    if (!chosen.back() || (m.rows % kSide == 0 && m.columns % kSide == 0)) continue;
    const std::string last = m.name.substr(m.name.rfind('.') + 1);
    unfit_kinds[concat(last, ' ', m.rows, ' ', m.columns)].push_back(&m);
  }
  for (const auto& [kind, all] : unfit_kinds) faults.push_back(unfit(*all[0], all.size() - 1));
  if (!faults.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults, "\n"));
  return chosen;
}

}  // namespace yoke
