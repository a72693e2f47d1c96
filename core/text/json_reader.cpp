#include "core/text/json_reader.hpp"

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

const nlohmann::json kNull;

}  // namespace

JsonReader JsonReader::field(const std::string& key) const {
  if (!value_.is_object()) refuse("an object was expected");
  const auto found = value_.find(key);
  const std::string separator = place_.ends_with(": ") ? "" : ".";
  return {found == value_.end() ? kNull : *found, place_ + separator + key};
}

JsonReader JsonReader::element(size_t index) const {
  return {value_.at(index), concat(place_, "[", index, "]")};
}

size_t JsonReader::size() const {
  if (!value_.is_array()) refuse("a list was expected");
  return value_.size();
}

std::string JsonReader::text(const std::string& key) const {
  const JsonReader found = field(key);
  if (!found.value_.is_string()) found.refuse("a text was expected");
  return found.value_.get<std::string>();
}

bool JsonReader::flag(const std::string& key, bool fallback) const {
  const JsonReader found = field(key);
  if (found.is_null()) return fallback;
  if (!found.value_.is_boolean()) found.refuse("true or false was expected");
  return found.value_.get<bool>();
}

int64_t JsonReader::number(const std::string& key) const {
  const JsonReader found = field(key);
  if (!found.value_.is_number_integer() || found.value_.get<int64_t>() < 0)
    found.refuse("a whole number was expected");
  return found.value_.get<int64_t>();
}

int32_t JsonReader::token_id() const {
  constexpr int64_t kMostIds = 1 << 24;
  const bool fits =
      value_.is_number_integer() && value_.get<int64_t>() >= 0 && value_.get<int64_t>() < kMostIds;
  if (!fits)
    refuse(value_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80) +
           concat(" is no id of a token; allowed: a whole number from 0 to ", kMostIds - 1));
  return value_.get<int32_t>();
}

void JsonReader::refuse(const std::string& what) const {
  throw Error(YOKE_INVALID_ARGUMENT, (place_.ends_with(": ") ? place_ : place_ + ": ") + what);
}

void JsonReader::refuse_type(const std::string& allowed) const {
  refuse("\"" + type() + "\" is not implemented; implemented: " + allowed);
}

}  // namespace yoke
