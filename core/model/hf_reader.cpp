#include "core/model/hf_reader.hpp"

#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

constexpr int64_t kMaxDim = int64_t{1} << 31;

// Returns the value as text for a message, truncated if it is long.
std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

}  // namespace

const nlohmann::json* HfReader::find(const char* key) const {
  const auto at = json_.find(key);
  return at == json_.end() || at->is_null() ? nullptr : &*at;
}

int64_t HfReader::count(const char* key, int64_t otherwise) {
  const Json* value = find(key);
  if (value == nullptr) {
    if (otherwise == 0) fault(concat(key, " is missing"));
    return otherwise;
  }
  if (value->is_number_integer() && *value > 0 && *value < kMaxDim) return value->get<int64_t>();
  refuse(key, *value, "; allowed: an integer of at least 1");
  return otherwise;
}

double HfReader::number(const char* key, double otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_number()) return value->get<double>();
  refuse(key, *value, "; allowed: a number");
  return otherwise;
}

bool HfReader::boolean(const char* key, bool otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  refuse(key, *value, "; allowed: true, false");
  return otherwise;
}

std::string HfReader::text(const char* key, const std::string& otherwise) {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  refuse(key, *value, "; allowed: a string");
  return otherwise;
}

void HfReader::fixed(const FixedKey& rule) {
  const Json* value = find(rule.key);
  if (value == nullptr || *value == Json::parse(rule.allowed)) return;
  refuse(rule.key, *value, concat(": ", rule.reason, "; allowed: ", rule.allowed));
}

void HfReader::refuse(const char* key, const Json& value, const std::string& why) {
  fault(concat(key, " = ", shown(value), why));
}

void HfReader::add_faults(const HfReader& inner) {
  faults_.insert(faults_.end(), inner.faults_.begin(), inner.faults_.end());
}

void HfReader::finish() const {
  if (!faults_.empty()) throw Error(YOKE_INVALID_ARGUMENT, join(faults_, "\n"));
}

}  // namespace yoke
