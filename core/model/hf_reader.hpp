// Reads the keys of a config.json one by one, and collects everything that is wrong with them. Does
// not need LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace yoke {

// A key for which only one value is supported.
struct FixedKey {
  const char* key;
  const char* allowed;  // JSON
  const char* reason;   // why other values are errors
};

// One object of a file. `json` must outlive the reader. Every message begins with `where`.
class HfReader {
 public:
  using Json = nlohmann::json;

  HfReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  // Returns whether the file has the key, even if its value is null.
  bool has(const char* key) const { return json_.contains(key); }
  // Returns nullptr for a key that is missing or null.
  const Json* find(const char* key) const;
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

  // These return `otherwise` if the key is missing or null, or after they have recorded a fault.
  // count: 0 as `otherwise` means that the key is required.
  int64_t count(const char* key, int64_t otherwise = 0);
  double number(const char* key, double otherwise);
  bool boolean(const char* key, bool otherwise);
  std::string text(const char* key, const std::string& otherwise);
  // Records a fault unless the key is missing, null or has the allowed value.
  void fixed(const FixedKey& rule);

  // These record a fault: a sentence, or "key = value" followed by `why`.
  void fault(const std::string& text) { faults_.push_back(where_ + ": " + text); }
  void refuse(const char* key, const Json& value, const std::string& why);
  // Takes over the faults of a reader of an object inside this one.
  void add_faults(const HfReader& inner);
  // Throws Error(INVALID_ARGUMENT) with all faults, one per line, if there are any.
  void finish() const;

 private:
  const Json& json_;
  const std::string where_;
  std::vector<std::string> faults_;
};

}  // namespace yoke
