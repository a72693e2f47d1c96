// Regular expressions of tokenizers are written for Oniguruma, the engine of Hugging Face's
// tokenizers. They are translated for PCRE2, which then finds the same matches.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace yoke {

// A Span is a half-open range of bytes.
struct Span {
  size_t begin = 0, end = 0;
};

// A Regex is a compiled expression. It is immutable and may be used from any thread.
class Regex {
 public:
  // Throws Error(INVALID_ARGUMENT) if the pattern is wrong, or if it uses a construct that has
  // another meaning in PCRE2 and is not translated.
  explicit Regex(const std::string& pattern);

 private:
  friend class RegexMatcher;
  std::shared_ptr<void> code_;
};

// A RegexMatcher is the memory that searches need. Each thread needs one of its own, which serves
// any number of expressions.
class RegexMatcher {
 public:
  RegexMatcher();
  // Returns the first match that is not empty and begins at `from` or later. The text must be
  // UTF-8, and `from` must be the first byte of a character. Throws Error(RESOURCE_EXHAUSTED) if
  // the search needs too much memory or too many steps.
  std::optional<Span> find(const Regex& regex, std::string_view text, size_t from);

 private:
  std::shared_ptr<void> match_, context_, stack_;
};

}  // namespace yoke
