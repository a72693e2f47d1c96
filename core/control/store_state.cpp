#include "core/control/store_state.hpp"

#include <algorithm>
#include <charconv>

#include "yoke/text.hpp"

namespace yoke {
namespace {

// Returns the number that a text begins with; 0 if it begins with none, as c10d's stores do.
int64_t signed_number(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

bool StoreState::handles(MessageType type) {
  return type >= MessageType::kSet && type <= MessageType::kCount;
}

void StoreState::set(const std::string& key,
                     const std::string& value,
                     std::vector<Answer>& answers) {
  values_[key] = value;
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  for (const auto& [connection, request] : waiting->second)
    answers.push_back({connection, request, value});
  waiting_.erase(waiting);
}

std::vector<StoreState::Answer> StoreState::handle(int connection, const Message& message) {
  // Missing fields count as empty: a member of this version sends all of them.
  const auto field = [&](size_t i) {
    return i < message.fields.size() ? message.fields[i] : std::string();
  };
  const std::string request = field(0), key = field(1);
  const auto found = values_.find(key);
  const bool exists = found != values_.end();
  const std::string now = exists ? found->second : "";
  std::vector<Answer> answers;
  std::string value;
  switch (message.type) {
    case MessageType::kSet:
      set(key, field(2), answers);
      break;
    case MessageType::kGet:
      if (!exists) {
        waiting_[key].push_back({connection, request});
        return answers;
      }
      value = now;
      break;
    case MessageType::kCheck:
      value = std::all_of(message.fields.begin() + (message.fields.empty() ? 0 : 1),
                          message.fields.end(),
                          [&](const std::string& k) { return values_.count(k) > 0; })
                  ? "1"
                  : "0";
      break;
    case MessageType::kAdd:
      value = concat(signed_number(now) + signed_number(field(2)));
      set(key, value, answers);
      break;
    case MessageType::kReplace: {
      // As in c10d: an absent key is set if an empty value was expected.
      const bool matches = exists ? now == field(2) : field(2).empty();
      if (matches) set(key, field(3), answers);
      value = matches ? field(3) : exists ? now : field(2);
      break;
    }
    case MessageType::kAppend:
      set(key, now + field(2), answers);
      break;
    case MessageType::kDelete:
      value = values_.erase(key) > 0 ? "1" : "0";
      break;
    case MessageType::kCount:
      value = concat(values_.size());
      break;
    default:
      return answers;
  }
  answers.push_back({connection, request, value});
  return answers;
}

void StoreState::closed(int connection) {
  for (auto& [key, requests] : waiting_)
    std::erase_if(requests, [&](const auto& r) { return r.first == connection; });
}

}  // namespace yoke
