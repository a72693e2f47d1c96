// The normalizer of a tokenizer: it changes a text before the text is split.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_reader.hpp"

namespace yoke {

// Immutable; may be used from any thread.
class Normalizer {
 public:
  // The normalizer that changes nothing.
  Normalizer() = default;
  // Reads the part "normalizer" of tokenizer.json: null, NFC, NFD, NFKC, NFKD, Prepend, Replace of
  // a fixed text, or a Sequence of them. Throws Error(INVALID_ARGUMENT) for all others.
  explicit Normalizer(const JsonReader& json);

  // Returns true if no text is changed.
  bool is_identity() const { return steps_.empty(); }
  // Returns the changed text. The argument must be UTF-8.
  std::string apply(std::string_view text) const;

 private:
  enum class Kind { kUnicodeForm, kPrepend, kReplace };
  struct Step {
    Kind kind;
    int unicode_options = 0;  // options of utf8proc
    std::string from, to;     // Prepend uses only `to`
  };
  void read(const JsonReader& json);

  std::vector<Step> steps_;
};

}  // namespace yoke
