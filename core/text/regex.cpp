// Translates a pattern from Oniguruma's syntax to PCRE2's, and compiles it.
//
// Most patterns of tokenizers mean the same in both engines. The differences that matter are:
// Oniguruma's \s is Unicode's White_Space, while PCRE2 adds U+180E; a script such as \p{Han} means
// the property Script in Oniguruma, and Script_Extensions in PCRE2; \w has more characters in
// Oniguruma; and \h and \b differ. The translation writes out the first three. It accepts only
// constructs that are known to be equal and refuses all others, because a pattern that is accepted
// and differs would change tokens without a sign. Oniguruma itself was rejected: it has no
// just-in-time compiler, and with it a pattern takes most of the time of a tokenizer.
#include "core/text/regex.hpp"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

// kSpace is the inside of a class that matches White_Space.
constexpr char kSpace[] =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// kWord is the inside of a class that matches Oniguruma's \w inside of a class. Outside of classes,
// \w takes the superscripts and fractions of Latin-1 for parts of words, too.
constexpr char kWord[] = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr char kWordInLatin1[] = R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})";

class Translation {
 public:
  explicit Translation(const std::string& pattern) : in_(pattern) {}

  std::string translate() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        open_class();
      } else if (c == ']' && in_class_) {
        in_class_ = false;
        copy(1);
      } else if (c == '(' && !in_class_) {
        group();
      } else if (in_class_ && in_.compare(at_, 2, "&&") == 0) {
        refuse("&& in a class");
      } else if (c == '{' && !in_class_) {
        repeat();
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(YOKE_INVALID_ARGUMENT,
                "the pattern " + in_ + " contains " + what +
                    concat(" at its byte ", at_, ", which is not implemented"));
  }

  void copy(size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  void open_class() {
    if (in_class_) refuse("a [ in a class");
    in_class_ = true;
    copy(in_.compare(at_, 2, "[^") == 0 ? 2 : 1);
    if (at_ < in_.size() && in_[at_] == ']') refuse("an empty class");
  }

  void group() {
    if (in_.compare(at_, 2, "(?") != 0) {
      if (in_.compare(at_, 2, "(*") == 0) refuse("(*");
      return copy(1);
    }
    constexpr std::array<const char*, 7> kEqual = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    for (const std::string opening : kEqual) {
      if (in_.compare(at_, opening.size(), opening) == 0) return copy(opening.size());
    }
    refuse(in_.substr(at_, 3));
  }

  // In Oniguruma {n,m}+ repeats {n,m}, and {n}? makes {n} optional. In PCRE2 the first one is
  // possessive, and the second one is {n}.
  void repeat() {
    if (in_.compare(at_, 2, "{,") == 0) refuse("{,");
    const size_t end = in_.find_first_not_of("0123456789,", at_ + 1);
    if (end == std::string::npos || in_[end] != '}') return copy(1);
    const std::string range = in_.substr(at_, end + 1 - at_);
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (after == '+' || (after == '?' && range.find(',') == std::string::npos))
      refuse(range + after);
    copy(range.size());
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a backslash at its end");
    const char c = in_[at_ + 1];
    const auto is_alnum = [](char x) {
      return (x >= '0' && x <= '9') || (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z');
    };
    if (in_class_ && (c == 's' || c == 'w')) {
      out_ += c == 's' ? kSpace : kWord;
      at_ += 2;
    } else if (!in_class_ && (c == 's' || c == 'S')) {
      out_ += concat(c == 's' ? "[" : "[^", kSpace, "]");
      at_ += 2;
    } else if (!in_class_ && (c == 'w' || c == 'W')) {
      out_ += concat(c == 'w' ? "[" : "[^", kWord, kWordInLatin1, "]");
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      property();
    } else if (in_.compare(at_, 3, "\\x{") == 0) {
      copy(3);  // the number in braces is no repetition
    } else if (is_alnum(c) && std::string("dDrntf").find(c) == std::string::npos) {
      refuse(in_.substr(at_, 2));
    } else {
      copy(2);
    }
  }

  // Translates \p{X}. One or two letters are a general category; a longer name is a script.
  void property() {
    const size_t open = at_ + 2, close = in_.find('}', at_);
    if (open >= in_.size() || in_[open] != '{' || close == std::string::npos)
      refuse(in_.substr(at_, 3));
    const std::string name = in_.substr(open + 1, close - open - 1);
    const bool letters = std::all_of(
        name.begin(), name.end(), [](char x) { return (x | 32) >= 'a' && (x | 32) <= 'z'; });
    if (!letters || name.empty()) refuse(in_.substr(at_, close + 1 - at_));
    out_ += in_.substr(at_, 3) + (name.size() > 2 ? "sc:" : "") + name + "}";
    at_ = close + 1;
  }

  const std::string& in_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

std::string pcre2_error(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

Regex::Regex(const std::string& pattern) {
  const std::string translated = Translation(pattern).translate();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                                   translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                                   &error,
                                   &offset,
                                   nullptr);
  if (code == nullptr) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "the pattern " + pattern + " is not implemented: " + pcre2_error(error) +
                    concat(" at byte ", offset, " of ", translated));
  }
  code_ =
      std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // Without a just-in-time compiler, PCRE2 interprets the pattern and finds the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

RegexMatcher::RegexMatcher() {
  constexpr size_t kFirstStack = 1 << 16, kLargestStack = 1 << 26;
  const auto keep = [](auto* object, auto free) {
    if (object == nullptr) throw std::bad_alloc();
    return std::shared_ptr<void>(object,
                                 [free](void* p) { free(static_cast<decltype(object)>(p)); });
  };
  match_ = keep(pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  context_ = keep(pcre2_match_context_create(nullptr), pcre2_match_context_free);
  stack_ = keep(pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr), pcre2_jit_stack_free);
  pcre2_jit_stack_assign(static_cast<pcre2_match_context*>(context_.get()), nullptr, stack_.get());
}

std::optional<Span> RegexMatcher::find(const Regex& regex, std::string_view text, size_t from) {
  auto* match = static_cast<pcre2_match_data*>(match_.get());
  const int found = pcre2_match(static_cast<pcre2_code*>(regex.code_.get()),
                                reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(),
                                from,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                match,
                                static_cast<pcre2_match_context*>(context_.get()));
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                "the pattern of the tokenizer could not be searched in a text of " +
                    concat(text.size(), " bytes: ", pcre2_error(found)) +
                    "; split the text into shorter documents");
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match);
  return Span{ends[0], ends[1]};
}

}  // namespace yoke
