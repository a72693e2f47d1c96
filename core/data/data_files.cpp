#include "core/data/data_files.hpp"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "core/data/indexed_stream.hpp"
#include "core/data/token_info.hpp"
#include "yoke/error.hpp"
#include "yoke/nearest.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShownNames = 3;

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_pattern(const std::string& entry) {
  return entry.find_first_of("*?[") != std::string::npos;
}

// Returns the names in a folder without those that start with '.', in ascending order. A folder
// that cannot be read has none.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with('.')) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A folder inside would be left out without a word, or read in an order that nobody expects.
void require_no_folder(const std::string& key,
                       const std::string& entry,
                       const std::vector<std::string>& files) {
  const auto folder = std::find_if(files.begin(), files.end(), is_folder);
  if (folder == files.end()) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              path_is(key, entry) + " names the folder \"" + *folder +
                  "\" among its files; allowed: files only; write a pattern that leaves it out, "
                  "like \"" +
                  (fs::path(is_pattern(entry) ? "FOLDER" : entry) / "*.bin").string() +
                  "\", or a list");
}

std::vector<std::string> files_of_folder(const std::string& key, const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : names_in(folder))
    files.push_back((fs::path(folder) / name).string());
  if (files.empty())
    throw Error(YOKE_NOT_FOUND,
                path_is(key, folder) + " is a folder without files; give a folder with files");
  return files;
}

std::vector<std::string> matches(const std::string& key, const std::string& pattern) {
  if (pattern.find("**") != std::string::npos)
    throw Error(
        YOKE_INVALID_ARGUMENT,
        path_is(key, pattern) +
            " contains \"**\", which would match one folder only; give a list of folders or "
            "patterns");
  glob_t found{};
  // A folder that does not exist has no match; one that cannot be read is a fault.
  const auto ends = [](const char*, int error) { return int{error != ENOENT && error != ENOTDIR}; };
  const int status = ::glob(pattern.c_str(), 0, ends, &found);
  std::vector<std::string> files;
  if (status == 0) files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOMATCH)
    throw Error(YOKE_NOT_FOUND,
                path_is(key, pattern) + " matches no file" + nearest_names(pattern));
  if (status != 0)
    throw Error(YOKE_INVALID_ARGUMENT,
                path_is(key, pattern) +
                    ": a folder of the pattern cannot be read; allowed: folders "
                    "that this user may read");
  std::sort(files.begin(), files.end());
  return files;
}

// Removes the descriptions, label masks and indices of files of the list.
void leave_out_companions(std::vector<std::string>& files) {
  const std::set<std::string> all(files.begin(), files.end());
  std::set<std::string> companions;
  for (const std::string& file : files) {
    const std::string info = token_info_path(file), mask = mask_path(file);
    if (all.contains(index_path(file)) && has_index(file)) companions.insert(index_path(file));
    // Beside X.ds, datatrove writes where documents end, what the ids are, and which are targets.
    for (const char* companion : {".index", ".metadata", ".loss"})
      if (file.ends_with(".ds") && all.contains(file + companion))
        companions.insert(file + companion);
    if (file == info || file == mask) continue;
    if (all.contains(info) && read_token_info(file)) companions.insert(info);
    if (all.contains(mask)) companions.insert(mask);
  }
  std::erase_if(files, [&](const std::string& file) { return companions.contains(file); });
}

}  // namespace

std::string path_is(const std::string& key, const std::string& path) {
  return key + " = \"" + path + "\"";
}

std::vector<std::string> expand_path(const std::string& key, const std::string& entry) {
  const bool folder = is_folder(entry);
  // Megatron names its datasets without the ".bin".
  if (!exists(entry) && exists(entry + ".bin") && has_index(entry + ".bin"))
    return {entry + ".bin"};
  if (!folder && (exists(entry) || !is_pattern(entry))) return {entry};
  std::vector<std::string> files = folder ? files_of_folder(key, entry) : matches(key, entry);
  require_no_folder(key, entry, files);
  leave_out_companions(files);
  return files;
}

std::string nearest_names(const std::string& path) {
  fs::path missing = path;
  const auto parent = [](const fs::path& of) {
    return of.has_parent_path() ? of.parent_path() : fs::path(".");
  };
  // A trailing '/' has an empty name, and its parent is the path without it.
  while (missing != parent(missing) && !is_folder(parent(missing).string()))
    missing = parent(missing);
  const std::string folder = parent(missing).string(), name = missing.filename().string();
  std::vector<std::pair<int, std::string>> near;
  const std::vector<std::string> names = names_in(folder);
  if (names.empty()) return "; " + folder + " has no files";
  for (const std::string& other : names) {
    // A name of which more than half differs is not what the user meant.
    const int distance = edit_distance(name, other);
    if (2 * distance <= static_cast<int>(std::max(name.size(), other.size())))
      near.emplace_back(distance, other);
  }
  if (near.empty()) return "; no name in " + folder + " is similar";
  std::sort(near.begin(), near.end());
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(near.size(), kShownNames); ++i) shown.push_back(near[i].second);
  return "; nearest names in " + folder + ": " + join(shown);
}

std::string find_repeated_file(const std::vector<std::string>& paths) {
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;  // opening the file reports the fault
    if (!seen.insert({info.st_dev, info.st_ino}).second) return path;
  }
  return "";
}

}  // namespace yoke
