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
