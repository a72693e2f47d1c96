// Reads a part of tokenizer.json and refuses, by name, what Yoke does not implement.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace yoke {

// A value of tokenizer.json and its place in the file, such as
// "x/tokenizer.json: pre_tokenizer.pretokenizers[1]". Refers to a value that the caller keeps. All
// functions throw Error(INVALID_ARGUMENT) with the place if the value is not as expected.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string place)
      : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return value_; }
  bool is_null() const { return value_.is_null(); }
  // Returns the field; a field that the object lacks is null.
  JsonReader field(const std::string& key) const;
  // Returns the element of a list; there must be size() > index.
  JsonReader element(size_t index) const;
  // Returns the number of elements of a list.
  size_t size() const;

  // The field must have the right type. Where `fallback` is given, it may also be absent or null.
  std::string text(const std::string& key) const;
  bool flag(const std::string& key, bool fallback) const;
  int64_t number(const std::string& key) const;
  // Returns this value, which must be the id of a token: a whole number from 0 to 16777215. The
  // bound keeps a wrong file from asking for gigabytes: tables of tokens are indexed by the id.
  int32_t token_id() const;

  // Returns the field "type" of an object.
  std::string type() const { return text("type"); }

  // Reports that this part is not implemented, or is wrong: "PLACE: WHAT".
  [[noreturn]] void refuse(const std::string& what) const;
  // Refuses the type of this part; `allowed` lists the types that are implemented.
  [[noreturn]] void refuse_type(const std::string& allowed) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
};

}  // namespace yoke
