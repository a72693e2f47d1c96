#include "plugins/ptd/torchtitan/job_file.hpp"

#include <algorithm>

#include "sdk/compat/toml.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::torchtitan {
namespace {

// Tables of which a job file has at least one, and a run file of Yoke has none.
constexpr std::string_view kOwnTables[] = {
    "job.", "training.", "parallelism.", "activation_checkpoint.", "lr_scheduler.", "float8."};

bool is_of_torchtitan(const std::vector<compat::TomlKey>& keys) {
  return std::any_of(keys.begin(), keys.end(), [](const compat::TomlKey& key) {
    const std::string path = present_path(key.path);
    return std::any_of(std::begin(kOwnTables), std::end(kOwnTables), [&](std::string_view table) {
      return path.starts_with(table);
    });
  });
}

// Returns "; did you mean 'optimizer.lr'?" for an unknown key: a key of that name in another table,
// one with a similar name in the same table, or one with a similar path; "" if there is none.
std::string suggestion(const std::string& path) {
  const std::string name = path.substr(path.rfind('.') + 1);
  std::vector<std::string> paths;
  for (const Key& key : keys()) paths.emplace_back(key.name);
  const auto same = std::find_if(
      paths.begin(), paths.end(), [&](const std::string& p) { return p.ends_with("." + name); });
  if (same != paths.end()) return concat("; did you mean '", *same, "'?");
  const std::string sibling = did_you_mean(name, siblings(path));
  return sibling.empty() ? did_you_mean(path, paths) : sibling;
}

bool is_empty(const compat::TomlKey& key) {
  return key.values.empty() || (key.values.size() == 1 && key.values[0].empty());
}

}  // namespace

JobFile::JobFile(const Options& options)
    : ForeignConfig(std::string(options.string(kOption)), find_key) {
  if (has_file()) read(options.content(kOption));
}

void JobFile::read(std::string_view text) {
  const auto refuse_file = [&](const std::string& hint) {
    messages_.push_back({concat("ptd.", kOption), file_, "a job file of torchtitan", hint});
    file_.clear();  // nothing of it means a default
  };
  std::vector<compat::TomlKey> keys;
  try {
    keys = compat::parse_toml(text);
  } catch (const compat::TomlError& error) {
    return refuse_file(concat(file_, ", line ", error.line, ": ", error.reason));
  }
  if (!is_of_torchtitan(keys))
    return refuse_file(
        "it has none of the tables job, training, parallelism, activation_checkpoint, "
        "lr_scheduler and float8");
  for (const compat::TomlKey& key : keys) {
    const Given given{key.values, concat(file_, ":", key.line, ": ", key.path)};
    const std::string path = present_path(key.path);
    const Key* const known = find_key(path);
    if (known == nullptr) {
      refuse(given,
             "a key of torchtitan's job files",
             concat("torchtitan has no such key, or it is newer than Yoke", suggestion(path)));
    } else if (is_empty(key)) {
      continue;  // the same as unset
    } else if (key.is_list && known->form != compat::Form::kWords) {
      refuse(given, compat::form_text(known->form), "it is no list");
    } else {
      take(*known, given);
    }
  }
}

std::vector<std::string> JobFile::list(std::string_view name) const {
  if (!is_given(name)) return {};
  std::string text = *word(name);
  std::replace(text.begin(), text.end(), ',', ' ');
  std::vector<std::string> entries;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) entries.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries;
}

bool JobFile::has_fp8() const {
  if (boolean("float8.enable_float8_linear") == true) return true;
  const std::vector<std::string> converters = list("model.converters");
  return std::any_of(converters.begin(), converters.end(), [](const std::string& name) {
    return present_path(name + ".") == "float8.";
  });
}

}  // namespace yoke::ptd::torchtitan
