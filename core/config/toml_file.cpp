#include "core/config/toml_file.hpp"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1  // so that no library has to be shipped
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

Value convert(const toml::node& node) {
  if (const auto* v = node.as_boolean()) return {v->get()};
  if (const auto* v = node.as_integer()) return {v->get()};
  if (const auto* v = node.as_floating_point()) return {v->get()};
  if (const auto* v = node.as_string()) return {v->get()};
  if (const auto* list = node.as_array()) {
    std::vector<Value> values;
    for (const toml::node& item : *list) values.push_back(convert(item));
    return {values};
  }
  if (node.is_table()) return {ForeignValue{"a table", "{...}"}};
  std::ostringstream text;
  node.visit([&](const auto& n) { text << n; });
  return {ForeignValue{"a date or time", text.str()}};
}

template <class Node>
int line_of(const Node& node) {
  return static_cast<int>(node.source().begin.line);
}

void flatten(const toml::table& table, std::vector<std::string> prefix, TomlFile& out) {
  for (const auto& [key, node] : table) {
    std::vector<std::string> path = prefix;
    path.emplace_back(key.str());
    const int line = line_of(key);
    const auto* below = node.as_table();
    if (path == std::vector<std::string>{"compare", "case"} && node.is_array_of_tables()) {
      for (const toml::node& item : *node.as_array()) {
        TomlFile one;
        flatten(*item.as_table(), {}, one);
        out.compare_cases.push_back({std::move(one.entries), line_of(item)});
      }
    } else if (below == nullptr) {
      out.entries.push_back({path, convert(node), line});
    } else if (below->empty()) {
      out.empty_tables.push_back({path, Value{false}, line});
    } else {
      flatten(*below, path, out);
    }
  }
}

std::string place(const std::string& path, const toml::parse_error& error) {
  return concat(path, ":", error.source().begin.line, ": ");
}

// Returns "; did you mean 'configs/novels.toml'?" if a run file in the same folder has a similar
// name, else "".
std::string nearest_file(const std::string& path) {
  const std::filesystem::path wanted(path);
  const std::filesystem::path folder = wanted.has_parent_path() ? wanted.parent_path() : ".";
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().filename().string());
  }
  const std::string found = nearest(wanted.filename().string(), names);
  if (found.empty()) return "";
  return "; did you mean '" + (wanted.parent_path() / found).string() + "'?";
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// Returns the text of a line, counted from 1.
std::string line_of(const std::string& text, int64_t number) {
  std::istringstream lines(text);
  std::string line;
  for (int64_t n = 0; n < number && std::getline(lines, line);) ++n;
  return line;
}

// A line without its comment.
struct CodeOfLine {
  std::string text;
  std::string unquoted;  // the parts of the text that are in no quotes
};

CodeOfLine without_comment(const std::string& line) {
  CodeOfLine code;
  char quote = 0;  // the open quote; 0 = none
  for (size_t i = 0; i < line.size() && (quote != 0 || line[i] != '#'); ++i) {
    code.text += line[i];
    if (quote == '"' && line[i] == '\\' && i + 1 < line.size()) {
      code.text += line[++i];
    } else if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line[i] == '"' || line[i] == '\'') {
      quote = line[i];
    } else {
      code.unquoted += line[i];
    }
  }
  return code;
}

// Returns what may be wrong with a line that is not valid, or "": people write values as in Python,
// YAML or a shell, where texts need no quotes, and editors replace straight quotes by curly ones.
std::string hint_for_line(const std::string& line) {
  const CodeOfLine code = without_comment(line);
  for (const char* quote : {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019"}) {
    if (code.unquoted.find(quote) != std::string::npos)
      return "; the line has curly quotes: write straight ones, \" or '";
  }
  const size_t equals = code.text.find('=');
  if (equals == std::string::npos) return "";
  const std::string key = trimmed(code.text.substr(0, equals));
  const std::string value = trimmed(code.text.substr(equals + 1));
  if (parse_toml_value(value)) return "";  // the error is another, such as a repeated key
  if (value.empty()) return "; the value is missing";
  const char first = value[0];
  if (first == '"' || first == '\'')
    return std::count(value.begin(), value.end(), first) == 1 ? "; the closing quote is missing"
                                                              : "";
  if (value == "True" || value == "False")
    return "; write " + key + (value == "True" ? " = true" : " = false");
  if (value == "None" || value == "null") return "; a key that is left out has its default";
  if (value.back() == ',' && first != '[' && first != '{') return "; remove the comma at the end";
  if (first == '.' && value.size() > 1 && std::isdigit(static_cast<unsigned char>(value[1])) != 0)
    return "; write " + key + " = 0" + value;
  const bool is_text = std::isalpha(static_cast<unsigned char>(first)) != 0 || first == '/' ||
                       first == '~' || value.starts_with("./") || value.starts_with("../");
  constexpr size_t kLongest = 100;  // bytes of a value that a message repeats
  return is_text && value.size() <= kLongest
             ? "; a text has quotes: " + key + " = " + toml_string(value)
             : "";
}

// Returns what to do with a file of another program, which its name shows to be no TOML.
std::string hint_for(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension().string();
  if (ending != ".yaml" && ending != ".yml" && ending != ".json" && ending != ".sh") return "";
  return "; run files are TOML: `yoke config import " + path +
         "` translates a config of DeepSpeed, Accelerate, Megatron or nanotron into one";
}

}  // namespace

std::string TomlEntry::dotted() const {
  std::string text;
  for (const std::string& part : key) text += (text.empty() ? "" : ".") + part;
  return text;
}

TomlFile parse_toml_file(const std::string& path) {
  TomlFile out;
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status)) {
    out.fault = path + ": there is no such file" + nearest_file(path);
    return out;
  }
  if (!std::filesystem::is_regular_file(status)) {
    out.fault =
        path + ": not a regular file; every rank opens the run file, so it cannot be a pipe";
    return out;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    out.fault = path + ": cannot be read: " + std::strerror(errno);
    return out;
  }
  const toml::parse_result result = toml::parse(text);
  if (!result) {
    const toml::parse_error& error = result.error();
    const std::string other = hint_for(path);
    out.fault = place(path, error) + "not valid TOML: " + std::string(error.description()) +
                (other.empty() ? hint_for_line(line_of(text, error.source().begin.line)) : other);
    return out;
  }
  flatten(result.table(), {}, out);
  const auto by_line = [](const TomlEntry& a, const TomlEntry& b) { return a.line < b.line; };
  std::stable_sort(out.entries.begin(), out.entries.end(), by_line);
  std::stable_sort(out.empty_tables.begin(), out.empty_tables.end(), by_line);
  return out;
}

std::optional<Value> parse_toml_value(const std::string& text) {
  // With a line break, the text could define more keys.
  if (text.find_first_of("\n\r") != std::string::npos) return std::nullopt;
  const toml::parse_result result = toml::parse("v = " + text);
  if (!result || result.table().size() != 1) return std::nullopt;
  return convert(*result.table().get("v"));
}

}  // namespace yoke
