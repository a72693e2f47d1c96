// Options: keys of a run file that a backend or a model family declares, typed and checked by the
// host.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/error.hpp"

namespace yoke {

// One key and what it accepts.
struct OptionInfo {
  std::string key;
  int32_t type = YOKE_OPTION_STRING;
  std::string default_value;         // as in a run file, strings without quotes; "" = unset
  std::vector<std::string> choices;  // of a string; empty = any. Of a file: its usual names
  double min = -std::numeric_limits<double>::infinity();  // of numbers, inclusive
  double max = std::numeric_limits<double>::infinity();
  std::string doc;
};

// One row of a table of options; see YokeOptionInfo. The texts are literals. range: inclusive, of
// numbers.
struct OptionRange {
  double min = 1, max = 0;  // no limit
};
inline YokeOptionInfo option_info(int32_t type,
                                  std::string_view key,
                                  std::string_view default_value,
                                  std::string_view choices,
                                  std::string_view doc,
                                  OptionRange range = {}) {
  YokeOptionInfo o{};
  o.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO);
  o.key = view(key);
  o.default_value = view(default_value);
  o.choices = view(choices);
  o.doc = view(doc);
  o.min = range.min;
  o.max = range.max;
  o.type = type;
  return o;
}

// Pointers to the rows of a table that lives as long as the process, as YokeDescription wants them.
template <class Rows>
std::vector<const YokeOptionInfo*> pointers_to(const Rows& rows) {
  std::vector<const YokeOptionInfo*> pointers;
  for (const YokeOptionInfo& row : rows) pointers.push_back(&row);
  return pointers;
}

// Values by key, of a backend or of a model family. The host passes every option that was declared,
// so a missing key is a defect.
class Options {
 public:
  Options() = default;
  Options(const YokeOption* options, uint64_t count) : options_(options), count_(count) {}

  int64_t integer(std::string_view key) const { return find(key).int_value; }
  bool boolean(std::string_view key) const { return find(key).int_value != 0; }
  double number(std::string_view key) const { return find(key).double_value; }
  std::string_view string(std::string_view key) const { return view(find(key).string_value); }
  std::string_view content(std::string_view key) const { return view(find(key).content); }
  bool given(std::string_view key) const { return find(key).given != 0; }

 private:
  const YokeOption& find(std::string_view key) const {
    for (uint64_t i = 0; i < count_; ++i) {
      if (view(options_[i].key) == key) return options_[i];
    }
    throw Error(YOKE_INTERNAL, "no option was declared as '" + std::string(key) + "'");
  }

  const YokeOption* options_ = nullptr;
  uint64_t count_ = 0;
};

}  // namespace yoke
