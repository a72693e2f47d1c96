#include "core/compare/cases.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "core/config/located_path.hpp"
#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::compare {
namespace {

constexpr char kNameLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

[[noreturn]] void refuse(const std::string& text) {
  throw Error(YOKE_INVALID_ARGUMENT, text);
}

std::string key_of(const std::string& word) {
  return word.substr(0, word.find('='));
}

int ranks(const std::string& word) {
  const std::string text = word.substr(word.find('=') + 1);
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < 1 || value > 4096)
    refuse(word + ": not a number of ranks; allowed: 1 to 4096");
  return value;
}

// Splits at commas. A part without '=' belongs to the previous value, as in profile.steps=10,12.
std::vector<std::string> split_overrides(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.find('=') == std::string::npos && !words.empty()) {
      words.back() += "," + word;
    } else if (!word.empty()) {
      words.push_back(word);
    }
    begin = end + 1;
  }
  return words;
}

// Returns true if the cases of a comparison may differ in this key.
bool is_free(const std::string& name) {
  const Key* key = find_key(name);
  if (key == nullptr) return !name.starts_with("model.");  // options of backends
  return key->is(kFree) || name.starts_with("precision.");
}

std::map<std::string, std::string> fixed_values(const LoadedConfig& config) {
  std::map<std::string, std::string> values;
  for (const Resolved& item : config.values) {
    if (!is_free(item.key)) values[item.key] = item.value;
  }
  return values;
}

// Returns the value of a key of a case. A relative path is looked up beside the run file first, as
// everywhere in the file. The types of a backend's options are not known yet, so their texts count
// as paths if a file beside the run file has that name.
Value located(const std::string& name,
              const Value& value,
              const std::string& folder,
              std::vector<std::string>& notes) {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) return value;
  const Key* key = find_key(name);
  std::error_code ignored;
  const bool is_path = key != nullptr
                           ? key->is(kPath)
                           : std::filesystem::is_regular_file(folder + "/" + *text, ignored);
  if (!is_path) return value;
  LocatedPath found = locate(folder, *text);
  if (!found.note.empty()) notes.push_back(name + ": " + found.note);
  return {std::move(found.path)};
}

}  // namespace

CaseSpec parse_case(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    refuse("--case " + text + ": expected NAME:key=value,key=value, like hsdp:dp_degree=2,nproc=4");
  CaseSpec spec;
  spec.name = text.substr(0, colon);
  for (const std::string& word : split_overrides(text.substr(colon + 1))) {
    if (key_of(word) == "nproc") {
      spec.nproc = ranks(word);
    } else {
      spec.overrides.push_back(word);
    }
  }
  return spec;
}

CaseSpec parse_external(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals + 1 == text.size())
    refuse("--external " + text + ": expected NAME=COMMAND, like \"ddp=torchrun peer.py\"");
  CaseSpec spec;
  spec.name = text.substr(0, equals);
  spec.command = text.substr(equals + 1);
  return spec;
}

std::vector<CaseSpec> cases_of_file(const std::string& path, std::vector<std::string>& notes) {
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  std::vector<CaseSpec> cases;
  for (const TomlCase& table : parse_toml_file(path).compare_cases) {
    const std::string where = concat(path, ":", table.line, ": [[compare.case]] ");
    CaseSpec& spec = cases.emplace_back();
    for (const TomlEntry& entry : table.entries) {
      const std::string key = entry.dotted();
      const auto* text = std::get_if<std::string>(&entry.value.data);
      if ((key == "name" || key == "external") && text == nullptr)
        refuse(where + key + " = " + to_text(entry.value) + "; allowed: a string");
      if (key == "name") {
        spec.name = *text;
      } else if (key == "external") {
        spec.command = *text;
      } else if (key == "nproc") {
        spec.nproc = ranks("nproc=" + to_text(entry.value));
      } else {
        spec.overrides.push_back(key + "=" + to_text(located(key, entry.value, folder, notes)));
      }
    }
    if (spec.name.empty()) refuse(where + "needs a name, like name = \"fsdp\"");
  }
  return cases;
}

void check_names(const std::vector<CaseSpec>& cases) {
  std::set<std::string> seen;
  for (const CaseSpec& spec : cases) {
    const bool legal = !spec.name.empty() && spec.name[0] != '.' &&
                       spec.name.find_first_not_of(kNameLetters) == std::string::npos;
    if (!legal || spec.name == kReference)
      refuse("case '" + spec.name +
             "': allowed are names of letters, digits, '.', '_' and '-', but not '" + kReference +
             "', which is reserved");
    if (!seen.insert(spec.name).second)
      refuse("two cases have the name '" + spec.name +
             "'; give each its own: --case NAME:key=value");
  }
}

std::vector<std::string> merged(const std::vector<std::string>& base,
                                const std::vector<std::string>& over) {
  std::vector<std::string> all;
  for (const std::string& word : base) {
    const bool replaced = std::any_of(
        over.begin(), over.end(), [&](const std::string& o) { return key_of(o) == key_of(word); });
    if (!replaced) all.push_back(word);
  }
  all.insert(all.end(), over.begin(), over.end());
  return all;
}

std::string incomparable(const CaseSpec& first,
                         const LoadedConfig& a,
                         const CaseSpec& other,
                         const LoadedConfig& b) {
  const auto left = fixed_values(a), right = fixed_values(b);
  const auto value = [](const std::map<std::string, std::string>& values, const std::string& key) {
    const auto found = values.find(key);
    return found == values.end() || found->second.empty() ? "unset" : found->second;
  };
  std::set<std::string> keys;
  for (const auto* values : {&left, &right}) {
    for (const auto& [key, unused] : *values) keys.insert(key);
  }
  std::string text;
  for (const std::string& key : keys) {
    const std::string x = value(left, key), y = value(right, key);
    if (x == y) continue;
    text += (text.empty() ? "" : "; ") + key + " = " + y + ", but " + x + " in case '" +
            first.name + "'";
  }
  if (text.empty()) return "";
  return "case '" + other.name + "' is not comparable: " + text +
         "; cases may differ in backend, layout, precision and what a resumed run may change";
}

}  // namespace yoke::compare
