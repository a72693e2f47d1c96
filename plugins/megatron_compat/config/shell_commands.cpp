#include "plugins/megatron_compat/config/shell_commands.hpp"

#include <utility>

namespace yoke::megatron_compat {
namespace {

// Splits a text into commands, and commands into words.
class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {}

  std::vector<ShellCommand> split() {
    while (at_ < text_.size()) step();
    end_command();
    return std::move(commands_);
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void step() {
    const char c = peek();
    if (c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2 : 3;
      ++line_;
      end_word();
    } else if (is_space(c)) {
      ++at_;
      end_word();
    } else if (c == '#' && !in_word_) {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else if (is_redirection()) {
      take_redirection();
    } else if (c == '\n' || c == ';') {
      end_command();
      line_ += c == '\n' ? 1 : 0;
      ++at_;
    } else if (c == '&' || c == '|') {
      const bool is_chain = peek(1) == c;
      end_command();
      command_.is_chained = is_chain;
      at_ += is_chain ? 2 : 1;
    } else if (c == ')') {
      end_pattern();
      ++at_;
    } else {
      take_part();
    }
  }
  // Takes a character, or everything up to the end of a quoted text, an array or an expansion.
  void take_part() {
    if (!in_word_) word_ = {"", line_};
    in_word_ = true;
    const char c = peek();
    if (c == '\'' || c == '"') {
      take_quoted(c);
    } else if (c == '(') {
      take_nested('(', ')');
      if (word_.text.ends_with("()")) end_word();  // "f(){" are two words
    } else if (c == '$' && (peek(1) == '(' || peek(1) == '{')) {
      take();
      take_nested(peek(), peek() == '(' ? ')' : '}');
    } else {
      if (c == '\\') take();
      take();
    }
  }
  // "<(ls)" is no redirection, but a word that stands for the output of a command.
  bool is_redirection() const {
    const char c = peek();
    return ((c == '<' || c == '>') && peek(1) != '(') || (c == '&' && peek(1) == '>');
  }
  // Takes the operator of a redirection, such as "2>&". The next word is its target.
  void take_redirection() {
    const bool is_descriptor = word_.text.find_first_not_of("0123456789") == std::string::npos;
    if (in_word_ && !is_descriptor) end_word();
    in_word_ = false;
    while (at_ < text_.size() && std::string_view("<>&|").find(peek()) != std::string_view::npos)
      ++at_;
    is_target_ = true;
    command_.has_redirection = true;
  }
  void take() {
    if (at_ >= text_.size()) return;
    line_ += peek() == '\n' ? 1 : 0;
    word_.text += text_[at_++];
  }
  void take_quoted(char quote) {
    take();
    while (at_ < text_.size() && peek() != quote) {
      if (peek() == '\\' && quote == '"') take();
      take();
    }
    take();
  }
  void take_nested(char open, char close) {
    int depth = 0;
    do {
      const char c = peek();
      if (c == '\'' || c == '"') {
        take_quoted(c);
        continue;
      }
      depth += c == open ? 1 : 0;
      depth -= c == close ? 1 : 0;
      take();
    } while (depth > 0 && at_ < text_.size());
  }
  void end_word() {
    if (!in_word_) return;
    if (!is_target_) command_.words.push_back(std::move(word_));
    in_word_ = is_target_ = false;
  }
  // A newline may follow "&&", so a command without words is not ended.
  void end_command() {
    end_word();
    is_target_ = false;
    if (command_.words.empty()) {
      if (command_.has_redirection) command_ = {};  // a command such as "> log"
      return;
    }
    commands_.push_back(std::move(command_));
    command_ = {};
  }
  // Ends a pattern of a "case" and drops it. Outside of quotes, nothing else ends with a ")" that
  // no "(" has opened.
  void end_pattern() {
    end_word();
    if (!command_.words.empty()) command_.words.pop_back();
    end_command();
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  RawWord word_;
  bool in_word_ = false;
  bool is_target_ = false;  // whether this word, or the next one, is the target of a redirection
  ShellCommand command_;
  std::vector<ShellCommand> commands_;
};

}  // namespace

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::vector<ShellCommand> split_commands(std::string_view text) {
  return Splitter(text).split();
}

}  // namespace yoke::megatron_compat
