// Writes a loaded configuration as a run file, selects the values that the ranks of a run have in
// common, and computes the hash that decides whether a run may be resumed with it.
#include <array>
#include <map>

#include "core/config/config.hpp"
#include "core/config/schema.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

bool is_bare(const std::string& key) {
  constexpr auto kBare = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  return !key.empty() && key.find_first_not_of(kBare) == std::string::npos;
}

std::string written_key(const std::string& key) {
  return is_bare(key) ? key : toml_string(key);
}

std::string print(const LoadedConfig& config, bool with_origins) {
  std::string out, table;
  for (const Resolved& item : config.values) {
    if (item.value.empty()) continue;
    const size_t dot = item.key.find('.');
    const std::string its_table = dot == std::string::npos ? "" : item.key.substr(0, dot);
    if (its_table != table) {
      table = its_table;
      out += "\n[" + written_key(table) + "]\n";
    }
    const std::string key = dot == std::string::npos ? item.key : item.key.substr(dot + 1);
    out += written_key(key) + " = " + item.value;
    out += with_origins ? "  # " + item.origin + "\n" : "\n";
  }
  return out;
}

// Returns the 64-bit FNV-1a hash. It only has to tell two configurations apart; nobody has a reason
// to construct a collision.
uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Returns whether a key may change when a run is resumed. The backend may be another one, but not
// the model.
bool is_free(const std::string& name) {
  const Key* key = find_key(name);
  return key != nullptr ? key->is(kFree) : !name.starts_with("model.");
}

// Returns a hash of all keys that are neither free nor have one of the flags `without`.
std::string digest(const LoadedConfig& config, uint32_t without) {
  const RunConfig defaults;
  std::string text;
  for (const Resolved& item : config.values) {
    const Key* key = find_key(item.key);
    if (is_free(item.key) || (key != nullptr && (key->flags & without) != 0)) continue;
    if (key != nullptr && key->is(kLater) && read_key(*key, config.run) == read_key(*key, defaults))
      continue;
    text += item.key + " = " + item.value + "\n";
  }
  return string_printf("%016llx", static_cast<unsigned long long>(fnv1a(text)));
}

}  // namespace

std::string to_toml(const LoadedConfig& config) {
  return print(config, false);
}

std::string to_toml_with_origins(const LoadedConfig& config) {
  return print(config, true);
}

std::vector<Resolved> shared_values(const LoadedConfig& config) {
  std::vector<Resolved> shared;
  for (const Resolved& item : config.values) {
    const Key* key = find_key(item.key);
    if (key != nullptr && key->is(kPerRank)) continue;
    shared.push_back({item.key,
                      item.value.empty() ? "unset" : item.value,
                      item.origin == "default" ? "" : item.origin});
  }
  return shared;
}

std::string resume_digest(const LoadedConfig& config) {
  return digest(config, 0);
}

std::string fixed_digest(const LoadedConfig& config) {
  return digest(config, kTunable);
}

ResumeChanges resume_changes(const LoadedConfig& before, const LoadedConfig& now) {
  std::map<std::string, std::array<std::string, 2>> values;  // values before and now, by key
  for (const Resolved& item : before.values) values[item.key][0] = item.value;
  for (const Resolved& item : now.values) values[item.key][1] = item.value;
  ResumeChanges changes;
  for (const auto& [name, both] : values) {
    if (both[0] == both[1] || is_free(name)) continue;
    const auto shown = [](const std::string& value) { return value.empty() ? "unset" : value; };
    const std::string text = concat(name, " = ", shown(both[1]), " (", shown(both[0]), " before)");
    const Key* key = find_key(name);
    (key != nullptr && key->is(kTunable) ? changes.tunable : changes.fixed).push_back(text);
  }
  return changes;
}

}  // namespace yoke
