// Reads a ds_config.json.
//
// DeepSpeed itself ignores a key that it does not know, so a misspelt key silently changes nothing.
// Here every key must have a row in the table of keys: an unknown one is refused with the nearest
// known name. All problems are collected, so that a user sees them at once.
#include "plugins/deepspeed_stub/config/ds_config.hpp"

#include <cmath>
#include <set>
#include <utility>

#include "plugins/deepspeed_stub/config/auto_values.hpp"
#include "plugins/deepspeed_stub/config/inline_options.hpp"
#include "plugins/deepspeed_stub/config/optimizer_type.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::deepspeed_stub {
namespace {

using Json = nlohmann::json;

// Iterates over a text and counts its lines.
struct LineCounter {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  int* line;  // line of *at, from 1

  reference operator*() const { return *at; }
  LineCounter& operator++() {
    if (*at == '\n') ++*line;
    ++at;
    return *this;
  }
  bool operator==(const LineCounter& other) const { return at == other.at; }
};

// A callback of the JSON parser that records the line of every key, and finds keys that occur twice
// in an object. The parsed object has neither: no lines, and only the last value. The parser calls
// it for a key when it has read nothing behind that key.
class KeyPlaces {
 public:
  // line: line that the parser has reached; must outlive this object.
  explicit KeyPlaces(const int& line) : line_(line) {}

  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      open_.back().now = parsed.get<std::string>();
      lines_[path()] = line_;
      if (!open_.back().seen.insert(open_.back().now).second) twice_.push_back(path());
    }
    return true;
  }
  const std::vector<std::string>& twice() const { return twice_; }
  const std::map<std::string, int, std::less<>>& lines() const { return lines_; }

 private:
  struct Object {
    std::set<std::string> seen;
    std::string now;  // key whose value is being parsed
  };
  std::string path() const {
    std::vector<std::string> words;
    for (const Object& object : open_) words.push_back(object.now);
    return join(words, ".");
  }

  const int& line_;
  std::vector<Object> open_;        // objects around the current position, outermost first
  std::vector<std::string> twice_;  // paths
  std::map<std::string, int, std::less<>> lines_;  // line of each path, of the last if it is twice
};

// Returns the text of a parse error from "line" on. The whole text is
// "[json.exception.parse_error.101] parse error at line 3, column 7: syntax error ...".
std::string syntax_error(const Json::parse_error& e) {
  const std::string text = e.what();
  const size_t at = text.find("line ");
  return at == std::string::npos ? text : text.substr(at);
}

// Also accepts floating-point numbers with an integral value, because ds_configs have sizes such as
// 5e8. The bound is below 2^63, so that the number can be converted.
bool is_integer(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
         std::fabs(value.get<double>()) < 9e18;
}

const char* form_name(Form form) {
  switch (form) {
    case Form::kBool:
      return "true | false";
    case Form::kInt:
      return "an integer";
    case Form::kNumber:
      return "a number";
    case Form::kString:
      return "a string";
    case Form::kAny:
      break;
  }
  return "any";
}

bool has_form(const Json& value, Form form) {
  switch (form) {
    case Form::kBool:
      return value.is_boolean();
    case Form::kInt:
      return is_integer(value);
    case Form::kNumber:
      return value.is_number();
    case Form::kString:
      return value.is_string();
    case Form::kAny:
      break;
  }
  return true;
}

// Returns the value as JSON text. Integral floating-point numbers become integers: 5e8 is returned
// as 500000000.
std::string as_text(const Json& value) {
  if (value.is_number_float() && is_integer(value)) return std::to_string(value.get<int64_t>());
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns why a file is none of DeepSpeed, or "" if it may be one. A file of only one or two keys
// may be one in which they are misspelt.
std::string why_foreign(const Json& config) {
  if (config.contains("model_type") || config.contains("architectures"))
    return "this is the config of a model; model.config is the key for it";
  constexpr size_t kMisspelt = 2;
  for (const auto& [name, value] : config.items()) {
    if (find_key(name) != nullptr) return "";
  }
  return config.size() <= kMisspelt ? "" : "DeepSpeed has none of the keys of the file";
}

}  // namespace

DsConfig::DsConfig(const Options& options) : file_(options.string("config_file")) {
  if (!file_.empty()) read_file(options.content("config_file"));
  read_inline(options);
  if (find("scheduler.type") == nullptr) check_parameters_without_schedule();
}

// DeepSpeed reads the parameters of a schedule only if it knows which schedule.
void DsConfig::check_parameters_without_schedule() {
  for (const auto& [path, value] : values_) {
    if (!path.starts_with("scheduler.params.")) continue;
    const bool from_file = is_in_file(path);
    messages_.push_back({label(path),
                         as_text(value),
                         from_file ? "" : "unset",
                         "no effect without scheduler.type; give the type, or set keys of the run: "
                         "train.schedule, train.warmup, lr_schedule.*",
                         from_file});
  }
}

void DsConfig::read_file(std::string_view text) {
  int line = 1;
  KeyPlaces places(line);
  Json config;
  try {
    // The parser copies its callback. With std::ref, all copies write to `places`.
    config = Json::parse(LineCounter{text.data(), &line},
                         LineCounter{text.data() + text.size(), &line},
                         std::ref(places));
  } catch (const Json::parse_error& e) {
    messages_.push_back(
        {"deepspeed_stub.config_file", file_, "a JSON object", file_ + ", " + syntax_error(e)});
    return;
  }
  lines_ = places.lines();
  // Of a duplicate key the parsed object has the last value, with which reading continues.
  for (const std::string& path : places.twice()) {
    messages_.push_back({in_file(path), "given twice", "each key once", "remove one of them"});
  }
  if (!config.is_object()) {
    messages_.push_back({"deepspeed_stub.config_file",
                         file_,
                         "a JSON object",
                         concat("its top level is of type ", config.type_name())});
    return;
  }
  if (const std::string reason = why_foreign(config); !reason.empty()) {
    messages_.push_back({"deepspeed_stub.config_file", file_, "a ds_config.json", reason});
    return;
  }
  const Json optimizer = config.value("optimizer", Json());
  const Json type = optimizer.is_object() ? optimizer.value("type", Json()) : Json();
  other_optimizer_ = type.is_string() && !has_optimizer(type);
  // Each key is read by itself. Checks of several keys are below, and in settings.cpp and
  // batch.cpp.
  read_object(config, "");
  const auto on = [&](const char* section) {
    const Json::json_pointer enabled(std::string("/") + section + "/enabled");
    return config.contains(enabled) && config[enabled] == true;
  };
  if (on("fp16") && on("bf16")) {
    messages_.push_back({in_file("fp16.enabled and bf16.enabled"),
                         "true",
                         "one of them",
                         "DeepSpeed refuses this combination as well"});
  }
}

void DsConfig::read_object(const Json& object, const std::string& path) {
  for (const auto& [name, value] : object.items()) {
    const std::string inner = path.empty() ? name : path + "." + name;
    if (const Key* key = find_key(inner)) {
      const bool is_section = key->handling == Handling::kSection && value.is_object();
      if (!is_section || value.empty()) given_.push_back({inner, as_text(value)});
      read_key(*key, inner, value);
    } else if (other_optimizer_ && path == "optimizer.params") {
      messages_.push_back({in_file(inner),
                           as_text(value),
                           "",
                           "no effect: it belongs to an optimizer that is not supported",
                           true});
    } else {
      const std::vector<std::string> known = siblings(inner);
      messages_.push_back({in_file(inner),
                           as_text(value),
                           "a key of DeepSpeed",
                           "DeepSpeed has no such key" + did_you_mean(name, known)});
    }
  }
}

void DsConfig::read_key(const Key& key, const std::string& path, const Json& value) {
  // The order of the cases matters. A key without effect is only noted, whatever its type. A
  // refused key must have the right type first, so that the message is about the type.
  if (value.is_null()) return;  // the same as an absent key
  if (value == "auto") return read_auto(path);
  const std::string given = as_text(value);
  if (key.handling == Handling::kSection) {
    if (value.is_object()) return read_object(value, path);
    messages_.push_back({in_file(path), given, "an object", "write an object, { }, with its keys"});
  } else if (key.handling == Handling::kNoEffect) {
    messages_.push_back(
        {in_file(path), given, "", "no effect here: " + std::string(key.why), true});
  } else if (!has_form(value, key.form)) {
    messages_.push_back(
        {in_file(path), given, concat(form_name(key.form), or_auto(path)), "correct the value"});
  } else if (key.handling == Handling::kRefused) {
    // JSON numbers are compared by value: 1 and 1.0 are the same.
    if (value == Json::parse(key.value)) return;
    messages_.push_back({in_file(path), given, std::string(key.value), std::string(key.why)});
  } else {
    values_[path] = value;
  }
}

void DsConfig::read_auto(const std::string& path) {
  autos_.insert(path);
  const AutoKind kind = auto_kind(path);
  const Key& key = *find_key(path);
  if (kind == AutoKind::kNone) {
    messages_.push_back(
        {in_file(path),
         "\"auto\"",
         key.handling == Handling::kSection ? "an object" : form_name(key.form),
         "neither transformers nor Accelerate replaces \"auto\" here; write a value"});
    return;
  }
  const bool is_used = key.handling == Handling::kHonoured || key.handling == Handling::kRun;
  if (kind == AutoKind::kValue && is_used) values_[path] = auto_value(path);
}

void DsConfig::fill_sizes(int64_t hidden_size) {
  for (const std::string& path : autos_) {
    if (auto_kind(path) != AutoKind::kSize || inline_.count(path) > 0) continue;
    if (hidden_size > 0) {
      values_[path] = auto_size(path, hidden_size);
    } else {
      messages_.push_back({in_file(path),
                           "\"auto\"",
                           "an integer",
                           "it depends on the size of the hidden states, which this model does not "
                           "report; write a number of elements"});
    }
  }
}

void DsConfig::read_inline(const Options& options) {
  // A key may be in the file and inline if both values are equal. After a refusal the inline value
  // is kept, so that later checks see one value.
  for (const Key& key : keys()) {
    const std::string name = inline_name(key);
    if (name.empty() || !options.given(name)) continue;
    const std::string path(key.path);
    const Json value = inline_value(options, key);
    if (const Json* other = find(path); other != nullptr && *other != value) {
      messages_.push_back({"deepspeed_stub." + name,
                           as_text(value),
                           as_text(*other),
                           in_file(path) + " = " + as_text(*other) + "; remove one of them"});
    }
    values_[path] = value;
    inline_[path] = name;
  }
}

const Json* DsConfig::find(std::string_view path) const {
  const auto found = values_.find(path);
  return found == values_.end() ? nullptr : &found->second;
}

// These conversions cannot throw: a value of the wrong type was refused and not stored.
std::optional<bool> DsConfig::boolean(std::string_view path) const {
  const Json* value = find(path);
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<int64_t> DsConfig::integer(std::string_view path) const {
  const Json* value = find(path);
  return value == nullptr ? std::nullopt : std::optional(value->get<int64_t>());
}

std::optional<double> DsConfig::number(std::string_view path) const {
  const Json* value = find(path);
  return value == nullptr ? std::nullopt : std::optional(value->get<double>());
}

std::optional<std::string> DsConfig::string(std::string_view path) const {
  const Json* value = find(path);
  return value == nullptr ? std::nullopt : std::optional(value->get<std::string>());
}

bool DsConfig::is_in_file(std::string_view path) const {
  return find(path) != nullptr && inline_.find(path) == inline_.end();
}

std::string DsConfig::in_file(std::string_view path) const {
  const auto line = lines_.find(path);
  return line == lines_.end() ? concat(file_, ": ", path)
                              : concat(file_, ":", line->second, ": ", path);
}

std::string DsConfig::label(std::string_view path) const {
  if (const auto found = inline_.find(path); found != inline_.end())
    return "deepspeed_stub." + found->second;
  const Key* const key = file_.empty() ? find_key(path) : nullptr;
  if (key != nullptr && !inline_name(*key).empty()) return "deepspeed_stub." + inline_name(*key);
  return in_file(path);
}

std::string DsConfig::shown(std::string_view path) const {
  const Json* value = find(path);
  if (is_auto(path) && inline_.count(path) == 0) return "\"auto\"";
  return value == nullptr ? "unset" : as_text(*value);
}

}  // namespace yoke::deepspeed_stub
