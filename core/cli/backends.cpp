#include "core/cli/backends.hpp"

#include <cstdio>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>

#include "core/backend/probe.hpp"
#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/check.hpp"
#include "core/cli/command.hpp"
#include "core/cli/new_backend.hpp"
#include "core/cli/table.hpp"
#include "core/cli/worker_program.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
}

std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string words(const Json& list) {
  std::string text;
  for (const Json& item : list) text += (text.empty() ? "" : " ") + plain(item);
  return text.empty() ? "-" : text;
}

std::string or_dash(const Json& value) {
  const std::string text = plain(value);
  return text.empty() ? "-" : text;
}

std::string indented(const std::string& text) {
  std::string out = "  ";
  for (const char c : text) out += c == '\n' ? "\n  " : std::string(1, c);
  return out + "\n";
}

// ---- list ----

// One candidate with its description, or with the reason why it cannot be used.
struct Listed {
  Candidate candidate;
  Json description;  // null if rejected or shadowed
  std::string rejected;
};

Listed examine(const Candidate& candidate, const std::string& worker) {
  Listed listed{candidate, nullptr, ""};
  if (!candidate.shadowed_by.empty()) return listed;
  if (!is_backend_name(candidate.name)) {
    listed.rejected = "backend " + candidate.path + " cannot be used: " + candidate.problem;
    return listed;
  }
  try {
    listed.description = Json::parse(probe_backend(worker, candidate.path));
  } catch (const Error& e) {
    listed.rejected = e.what();
  }
  return listed;
}

// Probes run in parallel: each is a process that spends most of its time in the dynamic loader.
std::vector<Listed> examine_all(const std::vector<Candidate>& candidates,
                                const std::string& worker) {
  std::vector<std::future<Listed>> probes;
  for (const Candidate& c : candidates) {
    probes.push_back(std::async(std::launch::async, [&worker, c] { return examine(c, worker); }));
  }
  std::vector<Listed> all;
  for (auto& probe : probes) all.push_back(probe.get());
  return all;
}

Json list_json(const std::vector<Listed>& all) {
  Json rows = Json::array();
  for (const Listed& l : all) {
    Json row = {{"name", l.candidate.name}, {"path", l.candidate.path}, {"status", "ok"}};
    if (!l.candidate.shadowed_by.empty()) {
      row["status"] = "shadowed";
      row["shadowed_by"] = l.candidate.shadowed_by;
    } else if (!l.rejected.empty()) {
      row["status"] = "rejected";
      row["reason"] = l.rejected;
    } else {
      row["description"] = l.description;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string list_text(const std::vector<Listed>& all) {
  Table table({"name", "version", "axes", "ZeRO stages", "dtypes", "LibTorch", "path"});
  std::string rejected, shadowed;
  for (const Listed& l : all) {
    if (!l.candidate.shadowed_by.empty()) {
      shadowed += "  " + l.candidate.path + " (" + l.candidate.shadowed_by + " comes first)\n";
    } else if (!l.rejected.empty()) {
      rejected += indented(l.rejected);
    } else {
      const Json& d = l.description;
      table.add({plain(d["name"]),
                 or_dash(d["version"]),
                 words(d["axes"]),
                 words(d["zero_stages"]),
                 words(d["param_dtypes"]),
                 or_dash(d["torch_tag"]),
                 l.candidate.path});
    }
  }
  std::string text =
      table.empty() ? "no usable backend found; see: yoke backends path\n" : table.text();
  if (!rejected.empty()) text += "\nrejected:\n" + rejected;
  if (!shadowed.empty()) text += "\nshadowed:\n" + shadowed;
  return text;
}

int list(bool json) {
  const auto candidates = list_candidates(search_dirs(SearchSettings::current()));
  const auto all = examine_all(candidates, candidates.empty() ? "" : find_worker(""));
  print(json ? list_json(all).dump(2) + "\n" : list_text(all));
  return kExitOk;
}

// ---- info ----

std::string allowed(const Json& option) {
  if (!option["choices"].empty()) {
    std::string text;
    for (const Json& choice : option["choices"])
      text += (text.empty() ? "" : " | ") + plain(choice);
    return text;
  }
  const Json &min = option["min"], &max = option["max"];
  if (!min.is_null() && !max.is_null()) return min.dump() + " ... " + max.dump();
  if (!min.is_null()) return min.dump() + " or more";
  if (!max.is_null()) return max.dump() + " or less";
  return option["type"] == "bool" ? "true | false" : "any";
}

std::string info_text(const Json& d, const std::string& path) {
  const std::string name = plain(d["name"]);
  const std::string tag = plain(d["torch_tag"]);
  std::string text = name + " " + plain(d["version"]) + ": " + plain(d["summary"]) + "\n\n";
  text += "  path         " + path + "\n";
  text += "  vendor       " + or_dash(d["vendor"]) + "\n";
  text += "  ABI          " + plain(d["abi"]) + "\n";
  text += "  LibTorch     " + (tag.empty() ? "not used (neutral model)" : tag) + "\n";
  text += "  axes         " + words(d["axes"]) + "\n";
  text += "  ZeRO stages  " + words(d["zero_stages"]) + "\n";
  text += "  dtypes       " + words(d["param_dtypes"]) + "\n";
  text += "  devices      " + words(d["devices"]) + "\n";
  if (d["local_updates"])
    text +=
        "  updates      local: replicas are synchronised from time to time, not at every step\n";
  if (d["own_update"]) {
    text += "  updates      by a rule of its own";
    text += d["ranks_change_update"] ? ", which depends on the number of data ranks\n" : "\n";
  }
  for (const Json& kind : d["state_kinds"]) {
    text += "  state        " + plain(kind["kind"]);
    text += kind["per_rank"] ? ", of each rank: it starts anew on another number of ranks\n" : "\n";
  }
  text += "\n";
  if (d["options"].empty()) return text + "It has no options.\n";
  Table table({"option", "type", "default", "allowed", "meaning"});
  for (const Json& o : d["options"]) {
    const std::string preset = plain(o["default"]);
    table.add({name + "." + plain(o["key"]),
               plain(o["type"]),
               preset.empty() ? (o["type"] == "string" ? "\"\"" : "-") : preset,
               allowed(o),
               plain(o["doc"])});
  }
  return text + table.text();
}

int info(const std::string& name, bool json) {
  const std::string path = find_backend(name, search_dirs(SearchSettings::current()));
  Json description = Json::parse(probe_backend(find_worker(""), path));
  if (!json) {
    print(info_text(description, path));
    return kExitOk;
  }
  description["path"] = path;
  print(description.dump(2) + "\n");
  return kExitOk;
}

// ---- path ----

int path() {
  Table table({"directory", "from", "state"});
  const auto dirs = search_dirs(SearchSettings::current());
  for (const SearchDir& dir : dirs) {
    const auto n = list_candidates({dir}).size();
    table.add({dir.path,
               dir.origin,
               !dir.problem.empty() ? dir.problem : concat(n, n == 1 ? " backend" : " backends")});
  }
  print(table.text());
  return kExitOk;
}

}  // namespace

int backends_command(const std::vector<std::string>& args) {
  CLI::App app("Lists parallel backends, shows what they can do, and creates and checks new ones.",
               "yoke backends");
  app.require_subcommand(1);
  bool json = false;
  std::string name;
  CLI::App* list_app = app.add_subcommand(
      "list", "list every backend that is found, and every one that is rejected");
  CLI::App* info_app =
      app.add_subcommand("info", "show the description and the options of a backend");
  CLI::App* path_app =
      app.add_subcommand("path", "list the directories that are searched, in order");
  std::string language = "cpp";
  CLI::App* new_app =
      app.add_subcommand("new", "create a backend of your own in the new folder ./NAME");
  new_app->add_option("NAME", name, "name of the backend: lower-case letters, digits and _")
      ->required();
  new_app->add_option("--lang", language, "language: c, cpp or torch; default: cpp");
  CheckRequest check;
  CLI::App* check_app = add_check_command(app, check);
  for (CLI::App* sub : {list_app, info_app}) sub->add_flag("--json", json, "print JSON");
  info_app->add_option("NAME", name, "name of a backend, or absolute path of a .so file")
      ->required();

  return run_command(app, args, [&] {
    try {
      if (path_app->parsed()) return path();
      if (new_app->parsed()) return new_backend(name, language);
      if (check_app->parsed()) return check_backend(check);
      return list_app->parsed() ? list(json) : info(name, json);
    } catch (const Error& e) {
      std::fprintf(stderr, "yoke: %s\n", e.what());
      return static_cast<int>(new_app->parsed() ? kExitUsage : kExitPlugin);
    }
  });
}

}  // namespace yoke
