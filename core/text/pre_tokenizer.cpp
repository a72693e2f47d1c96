#include "core/text/pre_tokenizer.hpp"

#include <utility>

#include "core/base/text.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

// GPT-2's pattern, which ByteLevel uses unless use_regex is false.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Returns a pattern that matches exactly this text.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#&~").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

Regex regex_at(const JsonReader& json, const std::string& pattern) {
  try {
    return Regex(pattern);
  } catch (const Error& e) {
    json.refuse(e.what());
  }
}

}  // namespace

PreTokenizer::PreTokenizer(const JsonReader& json) {
  read(json);
}

void PreTokenizer::read(const JsonReader& json) {
  if (json.is_null()) return;
  const std::string type = json.type();
  if (byte_level_) json.refuse("a step after ByteLevel is not implemented");
  if (type == "Sequence") {
    const JsonReader list = json.field("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) read(list.element(i));
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    Step step;
    step.prefix = " ";
    step.prepend = json.flag("add_prefix_space", true) ? Prepend::kAlways : Prepend::kNever;
    if (json.flag("use_regex", true)) step.regex.emplace_back(kGpt2Pattern);
    steps_.push_back(std::move(step));
  } else if (type == "Split") {
    read_split(json);
  } else if (type == "Digits") {
    Step step;
    step.regex.emplace_back(R"(\p{N})");
    step.behavior =
        json.flag("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
    steps_.push_back(std::move(step));
  } else if (type == "Metaspace") {
    read_metaspace(json);
  } else {
    json.refuse_type("ByteLevel, Digits, Metaspace, Sequence, Split");
  }
}

void PreTokenizer::read_split(const JsonReader& json) {
  constexpr std::pair<const char*, Behavior> kBehaviors[] = {
      {"Isolated", Behavior::kIsolated},
      {"Removed", Behavior::kRemoved},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  Step step;
  const JsonReader pattern = json.field("pattern");
  const bool fixed = pattern.value().is_object() && pattern.value().contains("String");
  step.regex.push_back(
      regex_at(json, fixed ? escaped(pattern.text("String")) : pattern.text("Regex")));
  step.invert = json.flag("invert", false);
  const std::string behavior = json.text("behavior");
  for (const auto& [name, value] : kBehaviors) {
    if (behavior != name) continue;
    step.behavior = value;
    steps_.push_back(std::move(step));
    return;
  }
  json.refuse("the behavior \"" + behavior +
              "\" is not implemented; implemented: Isolated, Removed, MergedWithPrevious, "
              "MergedWithNext, Contiguous");
}

void PreTokenizer::read_metaspace(const JsonReader& json) {
  Step step;
  step.space = step.prefix = json.text("replacement");
  const std::string scheme = json.field("prepend_scheme").is_null()
                                 ? (json.flag("add_prefix_space", true) ? "always" : "never")
                                 : json.text("prepend_scheme");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    json.refuse("prepend_scheme is \"" + scheme + "\"; allowed: always, first, never");
  step.prepend = scheme == "always"  ? Prepend::kAlways
                 : scheme == "first" ? Prepend::kFirst
                                     : Prepend::kNever;
  if (json.flag("split", true)) {
    step.regex.push_back(regex_at(json, escaped(step.space)));
    step.behavior = Behavior::kMergedWithNext;
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::split(std::string_view text,
                         bool at_start,
                         RegexMatcher& matcher,
                         Words& out) const {
  out.made.clear();
  out.words.assign(1, text);
  for (const Step& step : steps_) {
    out.previous.swap(out.words);
    out.words.clear();
    bool first = at_start;
    for (std::string_view word : out.previous) {
      if (!step.space.empty()) word = out.made.emplace_back(replace_all(word, " ", step.space));
      const bool prepend = step.prepend == Prepend::kAlways ||
                           (step.prepend == Prepend::kFirst && std::exchange(first, false));
      if (prepend && !word.starts_with(step.prefix))
        word = out.made.emplace_back(step.prefix + std::string(word));
      if (step.regex.empty()) {
        out.words.push_back(word);
      } else {
        split_word(step, word, matcher, out);
      }
    }
  }
}

// Cuts the word at the matches. The text between two matches is a part, too. `invert` exchanges the
// roles of matches and of the text between them.
void PreTokenizer::split_word(const Step& step,
                              std::string_view word,
                              RegexMatcher& matcher,
                              Words& out) {
  const size_t first = out.words.size();
  bool previous_matched = false;
  // True if the last part is one that the next part joins, for kMergedWithNext.
  bool joins_next = false;
  const auto add = [&](size_t begin, size_t end, bool matched) {
    if (begin == end) return;
    const std::string_view part = word.substr(begin, end - begin);
    bool join = false;
    if (step.behavior == Behavior::kContiguous) join = matched == previous_matched;
    if (step.behavior == Behavior::kMergedWithPrevious) join = matched && !previous_matched;
    if (step.behavior == Behavior::kMergedWithNext) join = joins_next && !matched;
    joins_next = matched;
    previous_matched = matched;
    if (step.behavior == Behavior::kRemoved && matched) return;
    if (join && out.words.size() > first) {
      std::string_view& last = out.words.back();
      last = {last.data(), last.size() + part.size()};
    } else {
      out.words.push_back(part);
    }
  };
  size_t at = 0;
  while (at < word.size()) {
    const std::optional<Span> match = matcher.find(step.regex.front(), word, at);
    if (!match) break;
    add(at, match->begin, step.invert);
    add(match->begin, match->end, !step.invert);
    at = match->end;
  }
  add(at, word.size(), step.invert);
}

}  // namespace yoke
