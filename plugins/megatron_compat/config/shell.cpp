// Scripts that start Megatron mostly assign variables and arrays and end with one long command.
// Only that much of the language is understood. A value that needs more, such as $(nproc), is kept
// as unknown and becomes a problem if the command uses it: a wrong guess would train another model
// without a word. Running the script instead is no option, because it could do anything.
#include "plugins/megatron_compat/config/shell.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>

#include "plugins/megatron_compat/config/shell_commands.hpp"
#include "yoke/text.hpp"

namespace yoke::megatron_compat {
namespace {

// A value of a variable or of a part of a word.
struct Value {
  std::vector<std::string> words;  // one, unless the variable is an array
  bool is_array = false;
  std::string unknown;  // why the value is unknown; "" = it is known
};
using Variables = std::map<std::string, Value, std::less<>>;

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// ---- Expansion ----

constexpr const char* kOpenQuote = "has a quote that is not closed";

// Expands one word into any number of words, as bash does without globs.
class Expander {
 public:
  explicit Expander(const Variables& variables) : variables_(variables) {}

  std::vector<std::string> expand(std::string_view raw) {
    for (size_t i = 0; i < raw.size();) i = part(raw, i, false);
    finish();
    return std::move(words_);
  }
  const std::string& unknown() const { return unknown_; }

 private:
  // Expands the part that begins at i, and returns where the next one begins.
  size_t part(std::string_view raw, size_t i, bool quoted) {
    const char c = raw[i];
    if (c == '\'' && !quoted) {
      const size_t end = raw.find('\'', i + 1);
      if (end == std::string_view::npos) return fail(raw.size(), kOpenQuote);
      append(raw.substr(i + 1, end - i - 1));
      return end + 1;
    }
    if (c == '"') {
      started_ = true;
      for (++i; i < raw.size() && raw[i] != '"';) i = part(raw, i, true);
      return i < raw.size() ? i + 1 : fail(raw.size(), kOpenQuote);
    }
    if (c == '\\' && i + 1 < raw.size()) {
      const bool is_escape = !quoted || raw[i + 1] == '"' || raw[i + 1] == '\\' ||
                             raw[i + 1] == '$' || raw[i + 1] == '`';
      if (raw[i + 1] != '\n') append(raw.substr(is_escape ? i + 1 : i, is_escape ? 1 : 2));
      return i + 2;
    }
    if (c == '`') return fail(raw.size(), "uses the output of a command (`...`)");
    if ((c == '<' || c == '>') && !quoted && raw.substr(i + 1).starts_with("("))
      return fail(raw.size(), concat("uses the output of a command (", c, "(...))"));
    if (c == '$') return variable(raw, i, quoted);
    append(raw.substr(i, 1));
    return i + 1;
  }
  size_t variable(std::string_view raw, size_t i, bool quoted) {
    const std::string_view rest = raw.substr(i + 1);
    if (rest.starts_with("((")) return fail(raw.size(), "uses arithmetic ($((...)))");
    if (rest.starts_with("(")) return fail(raw.size(), "uses the output of a command ($(...))");
    if (rest.starts_with("{")) {
      const size_t end = rest.find('}');
      if (end == std::string_view::npos) return fail(raw.size(), "has a '${' without a '}'");
      braced(rest.substr(1, end - 1), quoted);
      return i + 2 + end;
    }
    size_t length = 0;
    while (length < rest.size() && is_name(rest[length])) ++length;
    if (length == 0) {
      if (!rest.empty() && (rest[0] == '@' || rest[0] == '*' || rest[0] == '#'))
        return fail(raw.size(), "uses the arguments of the script");
      append("$");
      return i + 1;
    }
    insert(rest.substr(0, length), std::nullopt, quoted);
    return i + 1 + length;
  }
  // Expands "X", "X:-d", "X-d", "X[@]" or "X[*]", what is between braces.
  void braced(std::string_view text, bool quoted) {
    size_t length = 0;
    while (length < text.size() && is_name(text[length])) ++length;
    const std::string_view name = text.substr(0, length);
    std::string_view rest = text.substr(length);
    if (rest == "[@]" || rest == "[*]") rest = "";
    if (name.empty()) {
      fail(0, concat("uses ${", text, "}"));
    } else if (rest.empty()) {
      insert(name, std::nullopt, quoted);
    } else if (rest.starts_with(":-") || rest.starts_with("-")) {
      insert(name, rest.substr(rest.starts_with(":-") ? 2 : 1), quoted);
    } else {
      fail(0, concat("uses ${", text, "}"));
    }
  }
  void insert(std::string_view name, std::optional<std::string_view> otherwise, bool quoted) {
    const auto found = variables_.find(name);
    const bool is_set = found != variables_.end() &&
                        !(found->second.words.empty() && found->second.unknown.empty()) &&
                        !(otherwise && found->second.words == std::vector<std::string>{""});
    if (!is_set && otherwise) {
      for (size_t i = 0; i < otherwise->size();) i = part(*otherwise, i, quoted);
    } else if (found == variables_.end()) {
      fail(0, concat("uses the variable ", name, ", which it does not set"));
    } else if (!found->second.unknown.empty()) {
      fail(0, concat("sets ", name, " to a value that ", found->second.unknown));
    } else {
      insert(found->second, quoted);
    }
  }
  void insert(const Value& value, bool quoted) {
    for (size_t w = 0; w < value.words.size(); ++w) {
      if (w > 0) finish();
      if (quoted) {
        append(value.words[w]);
      } else {
        split(value.words[w]);
      }
    }
  }
  // Appends an unquoted text, which ends words at spaces.
  void split(std::string_view text) {
    for (const char c : text) {
      if (is_space(c) || c == '\n') {
        finish();
      } else {
        append(std::string_view(&c, 1));
      }
    }
  }
  void append(std::string_view text) {
    started_ = true;
    word_ += text;
  }
  void finish() {
    if (started_) words_.push_back(std::move(word_));
    word_.clear();
    started_ = false;
  }
  size_t fail(size_t next, std::string why) {
    if (unknown_.empty()) unknown_ = std::move(why);
    return next;
  }

  const Variables& variables_;
  std::vector<std::string> words_;
  std::string word_, unknown_;
  bool started_ = false;
};

// ---- Scripts ----

constexpr std::array kOpening = {"if", "for", "while", "until", "case", "select", "{"};
constexpr std::array kBetween = {"then", "elif", "else", "do"};
constexpr std::array kClosing = {"fi", "done", "esac", "}"};
constexpr std::array kLaunchers = {"torchrun", "python", "python3"};
constexpr std::array kDeclaring = {"export", "declare", "local", "readonly"};

template <class List>
bool is_any(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Returns the length of the name in "NAME=..." or "NAME+=...", 0 if the word is no assignment.
size_t assigned_name(std::string_view word) {
  size_t length = 0;
  while (length < word.size() && is_name(word[length])) ++length;
  if (length == 0 || std::isdigit(static_cast<unsigned char>(word[0])) != 0) return 0;
  const std::string_view rest = word.substr(length);
  return rest.starts_with("=") || rest.starts_with("+=") ? length : 0;
}

class Script {
 public:
  explicit Script(std::vector<ShellProblem>& problems) : problems_(problems) {}

  std::vector<Word> read(std::string_view text) {
    for (const ShellCommand& command : split_commands(text)) run(command);
    if (is_alone_) problems_.insert(problems_.end(), others_.begin(), others_.end());
    if (!has_command_)
      problems_.push_back({1, "has no command that runs a Python script such as pretrain_gpt.py"});
    return std::move(words_);
  }

 private:
  void run(const ShellCommand& command) {
    const std::vector<RawWord>& words = command.words;
    if (is_any(kClosing, words[0].text) && depth_ > 0) --depth_;
    size_t i = pass_openings(words);
    const bool declares = i < words.size() && is_any(kDeclaring, words[i].text);
    if (declares) ++i;
    for (; i < words.size(); ++i) {
      if (assigned_name(words[i].text) > 0) {
        assign(words[i], depth_ > 0 || command.is_chained, command.has_redirection);
      } else if (!declares) {
        break;
      }
    }
    if (i >= words.size()) return;
    if (is_launch(words, i)) return launch(command, i);
    const std::string& first = words[i].text;
    others_.push_back(
        {words[i].line,
         concat(
             "has a line that begins with '", first.substr(0, first.find('\n')), "' instead of --"),
         /*is_script=*/false});
  }
  // Returns the index of the first word behind the keywords, heads of functions and patterns in
  // parentheses with which a command begins. What they open depends on a condition: a function may
  // never be called.
  size_t pass_openings(const std::vector<RawWord>& words) {
    size_t i = 0;
    for (; i < words.size(); ++i) {
      const std::string& word = words[i].text;
      const bool has_parentheses =
          word.ends_with("()") || (i + 1 < words.size() && words[i + 1].text == "()");
      if (is_any(kOpening, word)) {
        ++depth_;
      } else if (word == "function") {
        ++i;  // its name
      } else if (!is_any(kBetween, word) && !word.starts_with("(") &&
                 (!has_parentheses || assigned_name(word) > 0)) {
        break;
      }
    }
    return i;
  }
  static bool is_option(const RawWord& word) { return word.text.starts_with("--"); }
  // An option is a command in a file of arguments alone, which has no conditions.
  bool is_launch(const std::vector<RawWord>& words, size_t first) const {
    return (is_option(words[first]) && depth_ == 0) || is_any(kLaunchers, words[first].text) ||
           std::any_of(words.begin() + static_cast<int64_t>(first), words.end(), [](auto& w) {
             return w.text.ends_with(".py") || w.text.ends_with(".py\"");
           });
  }
  // A file of arguments alone may have several lines.
  void launch(const ShellCommand& command, size_t first) {
    const std::vector<RawWord>& words = command.words;
    if (has_command_ && !(is_alone_ && is_option(words[first]))) {
      problems_.push_back({words[first].line, "has a second command with arguments"});
      return;
    }
    has_command_ = true;
    is_alone_ = is_option(words[first]);
    if (depth_ > 0)
      problems_.push_back(
          {words[first].line, "starts its training under a condition or in a function"});
    if (is_alone_ && command.has_redirection)
      problems_.push_back(
          {words[first].line, "consists of arguments alone and has an unquoted < or >; quote it"});
    for (size_t i = first; i < words.size(); ++i) {
      Expander expander(variables_);
      for (std::string& text : expander.expand(words[i].text))
        words_.push_back({std::move(text), words[i].line});
      if (!expander.unknown().empty()) problems_.push_back({words[i].line, expander.unknown()});
    }
  }
  // An assignment with a redirection sets nothing but a part of what it seems to set, as in the
  // placeholder DATA_PATH=<Specify path>.
  void assign(const RawWord& word, bool is_conditional, bool has_redirection) {
    const size_t length = assigned_name(word.text);
    const std::string name = word.text.substr(0, length);
    const bool appends = word.text[length] == '+';
    const std::string_view raw = std::string_view(word.text).substr(length + (appends ? 2 : 1));
    Value value = raw.starts_with("(") ? array(raw.substr(1, raw.size() - 2)) : scalar(raw);
    if (is_conditional)
      value.unknown = "depends on a condition, on && or ||, or on a call of a function";
    if (has_redirection) value.unknown = "has an unquoted < or >";
    Value& old = variables_[name];
    if (appends && old.unknown.empty() && value.unknown.empty()) {
      if (value.is_array) {
        value.words.insert(value.words.begin(), old.words.begin(), old.words.end());
      } else if (!old.words.empty()) {
        value.words[0] = old.words[0] + value.words[0];
      }
    } else if (appends && value.unknown.empty()) {
      value.unknown = old.unknown;
    }
    old = std::move(value);
  }
  Value scalar(std::string_view raw) {
    // The value of an assignment is not split at spaces, as if it were quoted.
    Expander expander(variables_);
    const std::vector<std::string> words = expander.expand(raw);
    std::string joined;
    for (const std::string& w : words) joined += (joined.empty() ? "" : " ") + w;
    return {{joined}, false, expander.unknown()};
  }
  Value array(std::string_view raw) {
    Value value;
    value.is_array = true;
    for (const ShellCommand& line : split_commands(raw)) {
      if (line.has_redirection) value.unknown = "has an unquoted < or >";
      for (const RawWord& word : line.words) {
        Expander expander(variables_);
        const std::vector<std::string> words = expander.expand(word.text);
        value.words.insert(value.words.end(), words.begin(), words.end());
        if (!expander.unknown().empty()) value.unknown = expander.unknown();
      }
    }
    return value;
  }

  std::vector<ShellProblem>& problems_;
  // Commands that are not understood. In a script they may be anything, such as cd.
  std::vector<ShellProblem> others_;
  Variables variables_;
  std::vector<Word> words_;
  int depth_ = 0;
  bool has_command_ = false;
  bool is_alone_ = false;  // whether the command has no launcher and no script
};

}  // namespace

std::vector<Word> read_shell(std::string_view text, std::vector<ShellProblem>& problems) {
  return Script(problems).read(text);
}

}  // namespace yoke::megatron_compat
