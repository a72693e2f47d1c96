// The pre-tokenizer of a tokenizer: it splits a text into words. Merges never cross from one word
// to the next.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/json_reader.hpp"
#include "core/text/regex.hpp"

namespace yoke {

// The words of a text. A word is a part of the text, or of a text that the pre-tokenizer made.
struct Words {
  std::vector<std::string_view> words;
  std::deque<std::string> made;
  std::vector<std::string_view> previous;  // words before the current step
};

// Immutable; may be used from any thread.
class PreTokenizer {
 public:
  // The pre-tokenizer that splits nothing.
  PreTokenizer() = default;
  // Reads the part "pre_tokenizer" of tokenizer.json: null, ByteLevel, Split, Digits, Metaspace, or
  // a Sequence of them in which ByteLevel is last. Throws Error(INVALID_ARGUMENT) for all others.
  explicit PreTokenizer(const JsonReader& json);

  // Splits `text`, which must be UTF-8 and outlive `out`. `at_start`: the text begins the document.
  void split(std::string_view text, bool at_start, RegexMatcher& matcher, Words& out) const;

  // Returns true if the words become bytes, i.e. if there is a ByteLevel step.
  bool is_byte_level() const { return byte_level_; }

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kNever, kFirst, kAlways };
  // Each step replaces spaces and prepends a text, where it has one, and then splits the words,
  // where it has an expression.
  struct Step {
    std::string space;   // replaces each space, unless empty
    std::string prefix;  // begins each word, if it does not already
    Prepend prepend = Prepend::kNever;
    std::vector<Regex> regex;  // none or one
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  void read(const JsonReader& json);
  void read_split(const JsonReader& json);
  void read_metaspace(const JsonReader& json);
  static void split_word(const Step& step,
                         std::string_view word,
                         RegexMatcher& matcher,
                         Words& out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace yoke
