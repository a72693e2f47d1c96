// Options: keys of a run file that a backend or a model family declares. The host checks their
// type, range and choice before the backend receives them. Does not need LibTorch.
//
// A backend declares its options as a static table, and reads their values in plan and init:
//
//   static const YokeOptionInfo rows[] = {
//       yoke::option_info(YOKE_OPTION_INT, "unit_bytes", "1048576", "", "unit size", {1, 1e9}),
//       yoke::option_info(YOKE_OPTION_STRING, "order", "plain", "plain|zigzag", "order of ranks"),
//   };
//   static const auto options = yoke::pointers_to(rows);
//   yoke::set_options(description, options);                     // in describe; yoke/backend.hpp
//
//   const yoke::Options given(args.options, args.num_options);   // in plan and init
//   const int64_t bytes = given.integer("unit_bytes");
//
// All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {

// The declaration of one key, which owns its strings. Model families use it; backends use
// YokeOptionInfo, whose strings are literals.
struct OptionInfo {
  std::string key;                    // name without the backend's or the family's section
  int32_t type = YOKE_OPTION_STRING;  // YOKE_OPTION_...
  std::string default_value;          // as in a run file, strings without quotes; "" = unset
  std::vector<std::string> choices;   // allowed strings, empty = any; for a file, its usual names
  double min = -std::numeric_limits<double>::infinity();  // least number, inclusive
  double max = std::numeric_limits<double>::infinity();   // greatest number, inclusive
  std::string doc;                                        // one line for the user
};

// ---- Declaring options ----

// The numbers that an option accepts, both ends inclusive. The default (min > max) sets no limit.
struct OptionRange {
  double min = 1, max = 0;
};

// Returns one row of a table of options. The texts must be literals: the row keeps pointers to
// them. type: YOKE_OPTION_... default_value: as in a run file, strings without quotes, "" = unset.
// choices: "a|b|c", "" = any. range: for numbers only. See YokeOptionInfo.
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

// Returns pointers to the rows of a table, as YokeDescription needs them. Both the table and the
// returned vector must live as long as the process: make them static.
template <class Rows>
std::vector<const YokeOptionInfo*> pointers_to(const Rows& rows) {
  std::vector<const YokeOptionInfo*> pointers;
  for (const YokeOptionInfo& row : rows) pointers.push_back(&row);
  return pointers;
}

// ---- Reading options ----

// The values of the options by key. Borrows the array that the host passes to plan and init. The
// host passes every option that was declared, so an unknown key is a bug of the caller: the getters
// then throw Error(INTERNAL). Use the getter of the declared type; this is not checked.
class Options {
 public:
  Options() = default;  // no options
  // `options`, an array of `count`, must outlive this object.
  Options(const YokeOption* options, uint64_t count) : options_(options), count_(count) {}

  // Return the value, which is the default if the user set none. The strings live as long as the
  // array.
  int64_t integer(std::string_view key) const { return find(key).int_value; }
  bool boolean(std::string_view key) const { return find(key).int_value != 0; }
  double number(std::string_view key) const { return find(key).double_value; }
  std::string_view string(std::string_view key) const { return view(find(key).string_value); }
  // Returns the bytes of a file, or the lines NAME=VALUE of environment variables.
  std::string_view content(std::string_view key) const { return view(find(key).content); }
  // Returns the value for a message, by the declared type: "true", "8", "0.5", "zigzag", or a
  // file's path.
  std::string text(std::string_view key) const {
    const YokeOption& o = find(key);
    switch (o.type) {
      case YOKE_OPTION_INT:
        return concat(o.int_value);
      case YOKE_OPTION_BOOL:
        return o.int_value != 0 ? "true" : "false";
      case YOKE_OPTION_DOUBLE:
        return concat(o.double_value);
      default:
        return std::string(view(o.string_value));
    }
  }
  // Returns whether the user set the value. If not, a number or bool without a default has no
  // value.
  bool given(std::string_view key) const { return find(key).given != 0; }

 private:
  // A backend has few options, so a linear search is enough.
  const YokeOption& find(std::string_view key) const {
    for (uint64_t i = 0; i < count_; ++i) {
      if (view(options_[i].key) == key) return options_[i];
    }
    throw Error(YOKE_INTERNAL, "no option '" + std::string(key) + "' was declared");
  }

  const YokeOption* options_ = nullptr;
  uint64_t count_ = 0;
};

// Returns a row of a table of options that is declared to change the losses and the state of a run,
// as a hyperparameter does.
inline YokeOptionInfo changes_numbers(YokeOptionInfo row) {
  row.effects = YOKE_OPTION_CHANGES_NUMBERS;
  return row;
}

}  // namespace yoke
