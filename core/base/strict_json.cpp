// If an object has a key twice, nlohmann's parser silently keeps the last value. The parser calls a
// callback at each event, so the checks run there, and no second parser is needed.
#include "core/base/strict_json.hpp"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;

// The callback, which the parser calls at every event. It stores the first fault instead of
// throwing it. After a fault it returns false, so that the parser discards the rest of the text.
class Watch {
 public:
  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    if (depth > kMaxDepth) fault_ = "it is nested deeper than 32 levels";
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key) see(value.get_ref<const std::string&>());
    return fault_.empty();
  }
  const std::string& fault() const { return fault_; }

 private:
  void see(const std::string& key) {
    if (keys_.back().insert(key).second || !fault_.empty()) return;
    fault_ = "the key '" + key.substr(0, 80) + "' appears twice";
  }
  std::vector<std::unordered_set<std::string>> keys_;  // keys of each open object, outermost first
  std::string fault_;
};

}  // namespace

Json parse_json_object(const std::string& text, const std::string& where) {
  Watch watch;
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      return watch(depth, event, value);
    });
  } catch (const nlohmann::json::exception& e) {
    throw Error(YOKE_DATA_LOSS, where + " is not JSON: " + e.what());
  }
  if (!watch.fault().empty()) throw Error(YOKE_DATA_LOSS, where + ": " + watch.fault());
  if (!json.is_object()) throw Error(YOKE_DATA_LOSS, where + " is not a JSON object");
  return json;
}

}  // namespace yoke
