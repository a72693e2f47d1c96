// Loading a backend runs its code with the user's rights, so a name must never lead to a file that
// someone else could have put there. That is why the current directory is not searched, why
// relative paths are refused, and why unsafe_reason() checks owners and modes all the way up. The
// first file of a name wins even if it is broken: falling through to the next directory would train
// with a different backend from the one that the user expects.
#include "core/backend/search.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace fs = std::filesystem;

namespace yoke {
namespace {

// secure_getenv() ignores the variables in a program that runs with more rights than its user.
std::string env_value(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

// Checks one file or directory. Writable by the group counts as writable by others, because we do
// not know who is in the group.
Unsafe unsafe_entry(const std::string& path, const char* what) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return {concat(what, " ", path, " cannot be examined"), "check its path"};
  if (info.st_uid != 0 && info.st_uid != ::geteuid()) {
    return {concat(what,
                   " ",
                   path,
                   " belongs to user ",
                   info.st_uid,
                   "; allowed: root or you (user ",
                   ::geteuid(),
                   ")"),
            "copy the backend to a folder of your own"};
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return {concat(what, " ", path, " is writable by others"), "chmod go-w " + path};
  }
  return {};
}

// Checks the folders above the directory. They are a danger only if everybody may rename their
// entries: writable by all, and not sticky as /tmp is.
Unsafe unsafe_ancestor(const fs::path& directory) {
  for (fs::path p = directory.parent_path();; p = p.parent_path()) {
    struct stat info {};
    if (::stat(p.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) != 0 &&
        (info.st_mode & S_ISVTX) == 0) {
      return {"the folder " + p.string() + " above it is writable by everybody",
              "chmod o-w " + p.string()};
    }
    if (p == p.parent_path()) return {};
  }
}

// Checks the directory of a file and every folder above it.
Unsafe unsafe_place(const fs::path& file) {
  Unsafe found = unsafe_entry(file.parent_path(), "its directory");
  return found.reason.empty() ? unsafe_ancestor(file.parent_path()) : found;
}

std::string directory_problem(const std::string& path) {
  if (path.front() != '/') return "not an absolute path";
  std::error_code error;
  if (!fs::exists(path, error)) return "does not exist";
  if (!fs::is_directory(path, error)) return "not a directory";
  if (::access(path.c_str(), R_OK | X_OK) != 0) return "not readable";
  return "";
}

std::vector<std::string> split_path_list(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(':', at), list.size());
    if (end > at) parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Returns the .so files of a directory in alphabetical order. Errors count as an empty directory.
std::vector<std::string> so_files(const SearchDir& dir) {
  // The order of directory entries is arbitrary. Sorted, the list is the same each time.
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir.path, error)) {
    if (entry.path().extension() == ".so") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string count_text(const SearchDir& dir) {
  if (!dir.problem.empty()) return dir.problem;
  const size_t n = so_files(dir).size();
  return n == 1 ? "1 backend" : concat(n, " backends");
}

// Returns the folder of the shared library that contains this code: a worker built by the user
// links that library but may be installed anywhere. Without a shared library, returns
// <our bin>/../lib.
std::string our_lib_dir() {
  Dl_info here{};
  std::error_code error;
  const bool known = ::dladdr(reinterpret_cast<void*>(&our_lib_dir), &here) != 0;
  const fs::path library = known ? fs::canonical(here.dli_fname, error) : fs::path();
  if (!error && library.extension() == ".so") return library.parent_path().string();
  const fs::path exe = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : (exe.parent_path().parent_path() / "lib").string();
}

// Lists every directory with its state, because most searches fail at a directory that does not
// exist or is not the one that the user has in mind.
[[noreturn]] void throw_not_found(const std::string& name, const std::vector<SearchDir>& dirs) {
  std::vector<std::string> known;
  for (const Candidate& c : list_candidates(dirs)) {
    if (c.shadowed_by.empty() && c.problem.empty()) known.push_back(c.name);
  }
  std::string text = "backend '" + name + "' not found" + did_you_mean(name, known);
  text += "\n  searched, in this order:";
  for (const SearchDir& dir : dirs) {
    text += "\n    " + dir.path + " (" + dir.origin + "): " + count_text(dir);
  }
  text += "\n  known: ";
  text += known.empty() ? "none; build one, or name its folder in YOKE_BACKEND_PATH" : join(known);
  throw Error(YOKE_NOT_FOUND, text);
}

}  // namespace

SearchSettings SearchSettings::current(std::vector<std::string> config_path) {
  SearchSettings s;
  s.config_path = std::move(config_path);
  s.env_path = env_value("YOKE_BACKEND_PATH");
  s.data_home = env_value("XDG_DATA_HOME");
  // The XDG specification demands that a relative value is ignored.
  if (s.data_home.empty() || s.data_home.front() != '/') {
    const std::string home = env_value("HOME");
    s.data_home = home.empty() ? "" : home + "/.local/share";
  }
  s.lib_dir = our_lib_dir();
  return s;
}

std::vector<SearchDir> search_dirs(const SearchSettings& settings) {
  std::vector<SearchDir> dirs;
  std::set<std::string> seen;
  const auto add = [&](const std::string& path, const char* origin) {
    // If a directory were listed twice, with and without a slash at its end, each of its backends
    // would be reported as shadowed by itself.
    const std::string plain =
        path.size() > 1 && path.back() == '/' ? path.substr(0, path.size() - 1) : path;
    if (plain.empty() || !seen.insert(plain).second) return;
    dirs.push_back({plain, origin, directory_problem(plain)});
  };
  for (const std::string& path : settings.config_path) add(path, "backend_path");
  for (const std::string& path : split_path_list(settings.env_path)) add(path, "YOKE_BACKEND_PATH");
  if (!settings.data_home.empty()) add(settings.data_home + "/yoke/backends", "user");
  if (!settings.lib_dir.empty()) add(settings.lib_dir + "/yoke/backends", "this Yoke");
  add("/usr/local/lib/yoke/backends", "machine");
  return dirs;
}

std::vector<Candidate> list_candidates(const std::vector<SearchDir>& dirs) {
  std::vector<Candidate> all;
  std::map<std::string, std::string> taken;
  for (const SearchDir& dir : dirs) {
    if (!dir.problem.empty()) continue;
    for (const std::string& path : so_files(dir)) {
      Candidate c{fs::path(path).stem().string(), path, "", ""};
      if (!is_backend_name(c.name)) {
        c.problem = "the name '" + c.name +
                    "' is not allowed; rename it to lower-case letters, digits and _";
      } else {
        // An unsafe file still shadows later files of its name, for the reason given at the top of
        // this file.
        c.problem = unsafe_reason(path).reason;
        const auto [first, is_new] = taken.emplace(c.name, path);
        if (!is_new) c.shadowed_by = first->second;
      }
      all.push_back(std::move(c));
    }
  }
  std::stable_sort(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

std::vector<std::string> backend_names(const std::vector<std::string>& config_path) {
  std::vector<std::string> names;
  for (Candidate& c : list_candidates(search_dirs(SearchSettings::current(config_path)))) {
    if (c.shadowed_by.empty() && is_backend_name(c.name)) names.push_back(std::move(c.name));
  }
  return names;
}

std::string find_backend(const std::string& name_or_path, const std::vector<SearchDir>& dirs) {
  if (name_or_path.find('/') != std::string::npos) {
    if (name_or_path.front() != '/') {
      std::error_code error;
      throw Error(YOKE_INVALID_ARGUMENT,
                  "backend path '" + name_or_path +
                      "' is relative; give a name, or the absolute path " +
                      fs::absolute(name_or_path, error).lexically_normal().string());
    }
    std::error_code error;
    // Whether the file is safe to load is checked for all files alike, in check_library_file().
    if (fs::exists(name_or_path, error)) return name_or_path;
    throw Error(YOKE_NOT_FOUND, "backend " + name_or_path + " does not exist");
  }
  if (!is_backend_name(name_or_path)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                "backend name '" + name_or_path +
                    "' is not allowed; give a name of lower-case letters, digits and _, "
                    "starting with a letter, or an absolute path to a .so");
  }
  for (const SearchDir& dir : dirs) {
    const std::string path = dir.path + "/" + name_or_path + ".so";
    struct stat info {};
    // lstat() finds a dangling link, too, so that it is reported instead of skipped.
    if (dir.problem.empty() && ::lstat(path.c_str(), &info) == 0) return path;
  }
  throw_not_found(name_or_path, dirs);
}

Unsafe unsafe_reason(const std::string& file) {
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  if (error)
    return {"it cannot be resolved: " + error.message(), "correct or remove the symbolic link"};
  Unsafe found = unsafe_entry(real, "the file");
  if (found.reason.empty()) found = unsafe_place(real);
  // Anyone who can write to the folder of a symbolic link chooses which file is loaded.
  if (found.reason.empty()) found = unsafe_place(fs::absolute(file, error));
  return found;
}

bool is_backend_name(const std::string& name) {
  const auto lower = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && lower(name.front()) && std::all_of(name.begin(), name.end(), [&](char c) {
    return lower(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace yoke
