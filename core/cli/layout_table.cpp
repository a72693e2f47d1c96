#include "core/cli/layout_table.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/text.hpp"
#include "core/cli/table.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

// Returns "dp_degree=2 tp_degree=4": the degrees above 1.
std::string overrides_of(const Json& degrees) {
  std::string text;
  for (const auto& [key, degree] : degrees.items())
    if (degree.get<int>() > 1) text += concat(text.empty() ? "" : " ", key, "=", degree.get<int>());
  return text.empty() ? "one rank" : text;
}

std::string bytes(const Json& value) {
  return value.is_null() ? "unknown" : bytes_text(value.get<uint64_t>());
}

std::string traffic(const Json& layout) {
  const Json& known = layout.at("traffic_bytes");
  if (known.is_null() || layout.at("all_traffic").get<bool>()) return bytes(known);
  return known == 0 ? "unknown" : "at least " + bytes(known);
}

uint64_t or_most(const Json& value) {
  return value.is_null() ? std::numeric_limits<uint64_t>::max() : value.get<uint64_t>();
}

std::string possible_table(std::vector<Json> possible) {
  std::stable_sort(possible.begin(), possible.end(), [](const Json& a, const Json& b) {
    const auto costs = [](const Json& layout) {
      return std::pair(or_most(layout.at("memory_bytes")), or_most(layout.at("traffic_bytes")));
    };
    return costs(a) < costs(b);
  });
  Table table(
      {"layout", "micro-batches x sequences", "memory of a rank", "traffic of a rank", "idle"});
  for (const Json& one : possible) {
    const Json& idle = one.at("idle");
    table.add({overrides_of(one.at("degrees")),
               concat(one.at("accumulation").get<int>(), " x ", one.at("micro_batch").get<int>()),
               bytes(one.at("memory_bytes")),
               traffic(one),
               idle.is_null() ? "unknown" : string_printf("%.1f %%", 100 * idle.get<double>())});
  }
  return table.text();
}

// Returns a line for each reason, with the layouts to which it applies.
std::string refused_table(const Json& refused) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const Json& one : refused) {
    const std::string reason = one.at("reason");
    auto found = std::find_if(
        by_reason.begin(), by_reason.end(), [&](const auto& r) { return r.first == reason; });
    if (found == by_reason.end()) found = by_reason.insert(found, {reason, {}});
    found->second.push_back(overrides_of(one.at("degrees")));
  }
  std::string text;
  for (const auto& [reason, layouts] : by_reason) {
    const size_t more = layouts.size() - 1;
    text += layouts[0] + (more == 0 ? "" : concat(" and ", more, more == 1 ? " other" : " others"));
    text += ":\n  " + reason + "\n";
  }
  return text;
}

}  // namespace

std::string layout_table(const Json& layouts) {
  const Json &possible = layouts.at("possible"), &refused = layouts.at("refused");
  std::string text;
  if (!possible.empty()) text += possible_table({possible.begin(), possible.end()});
  if (!refused.empty())
    text += concat(text.empty() ? "" : "\n", "Not possible: ", refused.size(), " of ") +
            concat(possible.size() + refused.size(), " layouts\n\n") + refused_table(refused);
  return text;
}

}  // namespace yoke
