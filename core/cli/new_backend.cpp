#include "core/cli/new_backend.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/backend/search.hpp"
#include "core/base/exit_code.hpp"
#include "core/cli/worker_program.hpp"
#include "yoke/error.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

// A template is one of the examples in sdk/examples, with its name replaced.
struct Language {
  const char* name;
  const char* example;  // name of share/yoke/template/<example><suffix>
  const char* suffix;
  const char* project;  // language for CMake's project()
  const char* link;     // additional arguments for yoke_add_backend()
};
constexpr Language kLanguages[] = {
    {"c", "serial", ".c", "C", " LINK m"},
    {"cpp", "replicas", ".cpp", "CXX", ""},
    {"torch", "torch_replicas", ".cpp", "CXX", " TORCH"},
};

const Language& language_named(const std::string& name) {
  for (const Language& language : kLanguages) {
    if (language.name == name) return language;
  }
  throw Error(YOKE_INVALID_ARGUMENT, "--lang " + name + ": allowed: c, cpp, torch");
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Replaces every occurrence of `from`. With whole_words, occurrences inside another word stay.
std::string replaced(std::string text,
                     const std::string& from,
                     const std::string& to,
                     bool whole_words) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;) {
    const size_t end = at + from.size();
    const bool inside =
        (at > 0 && is_word(text[at - 1])) || (end < text.size() && is_word(text[end]));
    if (whole_words && inside) {
      at = end;
      continue;
    }
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return text;
}

fs::path template_folder() {
  const fs::path folder =
      fs::path(default_worker()).parent_path().parent_path() / "share/yoke/template";
  std::error_code error;
  if (fs::is_directory(folder, error)) return folder;
  throw Error(
      YOKE_FAILED_PRECONDITION,
      folder.string() + " does not exist; install Yoke's component `sdk` beside the programs");
}

std::string read(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  if (!(text << in.rdbuf())) throw Error(YOKE_NOT_FOUND, "cannot read " + file.string());
  return text.str();
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream out(file);
  if (!(out << text).flush()) throw Error(YOKE_RESOURCE_EXHAUSTED, "cannot write " + file.string());
}

// The folders that are searched for backends by name may hold one that is called like this.
void check_name(const std::string& name) {
  const std::vector<std::string> known = backend_names({});
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "a backend '" + name + "' is installed as " +
                    find_backend(name, search_dirs(SearchSettings::current({}))) +
                    "; choose another name, because a name means one backend");
  }
  if (is_backend_name(name)) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              "'" + name +
                  "' is not a valid name of a backend; allowed: a lower-case letter, then "
                  "lower-case letters, "
                  "digits and _, such as my_backend");
}

}  // namespace

int new_backend(const std::string& name, const std::string& language_name) {
  check_name(name);
  const Language& language = language_named(language_name);
  const fs::path from = template_folder(), to = name;
  std::error_code error;
  if (fs::exists(to, error)) {
    throw Error(YOKE_FAILED_PRECONDITION,
                "./" + name + " exists; choose another name, or remove it first");
  }
  const std::string source = name + language.suffix;
  const std::map<std::string, std::string> values = {
      {"@NAME@", name},
      {"@SOURCE@", source},
      {"@LANGUAGE@", language.project},
      {"@LINK@", language.link},
      {"@PREFIX@", from.parent_path().parent_path().parent_path().string()}};
  const auto filled = [&](const char* file) {
    std::string text = read(from / file);
    for (const auto& [key, value] : values) text = replaced(std::move(text), key, value, false);
    return text;
  };
  const std::string code = replaced(
      read(from / (std::string(language.example) + language.suffix)), language.example, name, true);
  const std::string cmake = filled("CMakeLists.txt.in"), readme = filled("README.md.in");
  if (!fs::create_directory(to, error))
    throw Error(YOKE_FAILED_PRECONDITION, "cannot create ./" + name + ": " + error.message());
  write(to / source, code);
  write(to / "CMakeLists.txt", cmake);
  write(to / "README.md", readme);
  std::printf(
      "%s/%s is a working backend. Next:\n"
      "  cmake -S %s -B %s/build && cmake --build %s/build\n"
      "  yoke backends check --deep \"$PWD/%s/build/%s.so\"\n",
      name.c_str(),
      source.c_str(),
      name.c_str(),
      name.c_str(),
      name.c_str(),
      name.c_str(),
      name.c_str());
  return kExitOk;
}

}  // namespace yoke
