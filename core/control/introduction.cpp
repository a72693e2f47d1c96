#include "core/control/introduction.hpp"

#include <algorithm>
#include <map>

#include "core/control/message.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr size_t kListedKeys = 5;
constexpr const char* kMissing = "no such key";

using Facts = std::map<std::string, const Fact*>;

Facts by_key(const Introduction& introduction) {
  Facts facts;
  for (const Fact& fact : introduction) facts[fact.key] = &fact;
  return facts;
}

std::string value_text(const Fact* fact) {
  if (fact == nullptr) return kMissing;
  const std::string value = fact->value.empty() ? "\"\"" : fact->value;
  return fact->source.empty() ? value : value + " (" + fact->source + ")";
}

// "ranks 2, 3 (node1) have"; the ranks have the same host if `host` is not "".
std::string who_has(const std::vector<int32_t>& ranks,
                    const std::string& host,
                    const std::string& noun) {
  std::string text = noun + (ranks.size() == 1 ? " " : "s ");
  for (size_t i = 0; i < ranks.size(); ++i) text += concat(i > 0 ? ", " : "", ranks[i]);
  if (!host.empty()) text += " (" + host + ")";
  return text + (ranks.size() == 1 ? " has " : " have ");
}

const Fact* find(const Facts& facts, const std::string& key) {
  const auto found = facts.find(key);
  return found == facts.end() ? nullptr : found->second;
}

bool equal(const Fact* a, const Fact* b) {
  return a == nullptr || b == nullptr ? a == b : a->value == b->value;
}

// Returns the line about `key` if the ranks differ in it, else "". The line names the value of the
// first rank and the first other value.
std::string line_about(const std::string& key,
                       const std::vector<Introduced>& all,
                       const std::vector<Facts>& facts,
                       const std::string& noun) {
  const Fact* first = find(facts[0], key);
  size_t other = 1;
  while (other < all.size() && equal(find(facts[other], key), first)) ++other;
  if (other == all.size()) return "";
  const Fact* value = find(facts[other], key);
  std::vector<int32_t> ranks;
  std::string host = all[other].host;
  for (size_t i = other; i < all.size(); ++i) {
    if (!equal(find(facts[i], key), value)) continue;
    ranks.push_back(all[i].rank);
    if (all[i].host != host) host = "";
  }
  return concat("\n  ", key, ": ") + who_has({all[0].rank}, all[0].host, noun) + value_text(first) +
         ", " + who_has(ranks, host, noun) + value_text(value);
}

}  // namespace

std::string pack_introduction(const Introduction& introduction) {
  Message message{MessageType::kJoin, {}};
  for (const Fact& fact : introduction)
    message.fields.insert(message.fields.end(), {fact.key, fact.value, fact.source});
  return encode(message);
}

Introduction unpack_introduction(const std::string& text) {
  FrameReader reader(text.size());
  reader.append(text.data(), text.size());
  const std::optional<Message> message = reader.next();
  if (!message || message->fields.size() % 3 != 0)
    throw Error(YOKE_DATA_LOSS, "not an introduction");
  Introduction introduction;
  for (size_t i = 0; i < message->fields.size(); i += 3)
    introduction.push_back({message->fields[i], message->fields[i + 1], message->fields[i + 2]});
  return introduction;
}

std::optional<std::string> first_differences(const std::vector<Introduced>& all,
                                             const std::string& noun) {
  std::vector<Facts> facts;
  std::vector<std::string> keys;  // keys of the first rank in its order, then those that it lacks
  for (const Introduced& rank : all) {
    facts.push_back(by_key(rank.facts));
    for (const Fact& fact : rank.facts) {
      if (find(facts[0], fact.key) == nullptr || facts.size() == 1) keys.push_back(fact.key);
    }
  }
  std::vector<std::string> lines;
  for (const std::string& key : keys) {
    std::string line = line_about(key, all, facts, noun);
    if (!line.empty() && std::find(lines.begin(), lines.end(), line) == lines.end())
      lines.push_back(std::move(line));
  }
  if (lines.empty()) return std::nullopt;
  std::string text = "the " + noun + "s do not run the same job:";
  for (size_t i = 0; i < std::min(lines.size(), kListedKeys); ++i) text += lines[i];
  if (lines.size() > kListedKeys)
    text += concat("\n  and ", lines.size() - kListedKeys, " more keys");
  return text;
}

}  // namespace yoke
