// Writes configurations and the schema as JSON, for other programs.
#include <nlohmann/json.hpp>

#include "core/config/config.hpp"
#include "core/config/schema.hpp"
#include "core/config/toml_file.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, ForeignValue>) {
          return v.text;
        } else if constexpr (std::is_same_v<T, std::vector<Value>>) {
          Json list = Json::array();
          for (const Value& item : v) list.push_back(to_json(item));
          return list;
        } else {
          return v;
        }
      },
      value.data);
}

Json or_null(const std::optional<Value>& value) {
  return value ? to_json(*value) : Json();
}

}  // namespace

std::string origins_json(const LoadedConfig& config) {
  Json out = Json::object();
  for (const Resolved& item : config.values) {
    Json row = Json::object();
    row["value"] = item.value.empty() ? Json() : or_null(parse_toml_value(item.value));
    row["origin"] = item.origin;
    out[item.key] = std::move(row);
  }
  // The path of the run file, which is a part of the origin, may contain bytes that are not UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string schema_json() {
  Json rows = Json::array();
  for (const Key& key : schema()) {
    const std::string variable = variable_name(std::string(key.name));
    Json row = Json::object();
    row["key"] = key.name;
    row["type"] = type_name(key);
    row["required"] = !default_of(key) && key.is(kRequired);
    row["default"] = or_null(default_of(key));
    row["allowed"] = allowed(key);
    row["variable"] = variable.empty() ? Json() : Json(variable);
    row["doc"] = key.doc;
    rows.push_back(std::move(row));
  }
  return rows.dump(2) + "\n";
}

}  // namespace yoke
