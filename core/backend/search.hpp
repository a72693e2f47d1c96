// Searches for backends: which folders are searched, and which file a name refers to. Loads
// nothing. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Everything that the search depends on.
struct SearchSettings {
  std::vector<std::string> config_path;  // key backend_path of the run file
  std::string env_path;                  // variable YOKE_BACKEND_PATH, separated by ':'
  std::string data_home;                 // $XDG_DATA_HOME, else ~/.local/share; "" = unknown
  std::string lib_dir;                   // folder of libyoke_worker.so, else <our bin>/../lib

  // Returns the settings of this process, from its environment and the path of its program.
  static SearchSettings current(std::vector<std::string> config_path = {});
};

// One directory of the search.
struct SearchDir {
  std::string path;
  std::string origin;   // "backend_path", "YOKE_BACKEND_PATH", "user", "this Yoke" or "machine"
  std::string problem;  // why it is not searched, such as "does not exist"; "" = it is searched
};

// A file <name>.so in one of the directories.
struct Candidate {
  std::string name;
  std::string path;
  std::string problem;      // why it cannot be used (unsafe owner or mode, bad name); "" = usable
  std::string shadowed_by;  // path of the file that is used instead; "" = this one is used
};

// Returns the directories in the order in which they are searched: backend_path, YOKE_BACKEND_PATH,
// the user's data folder, our own lib folder, /usr/local/lib. A directory that is named twice
// appears once.
std::vector<SearchDir> search_dirs(const SearchSettings& settings);

// Returns every candidate, even if it cannot be used, sorted by name and then by the order of the
// directories. The first candidate of a name is used even if it is broken: it must not be
// silently replaced by another file.
std::vector<Candidate> list_candidates(const std::vector<SearchDir>& dirs);

// Returns the names of the candidates that are used, given the value of backend_path in a run file.
std::vector<std::string> backend_names(const std::vector<std::string>& config_path);

// Returns the file that a name or an absolute path refers to. Does not check whether it can be
// used; check_library_file() does. Throws Error: INVALID_ARGUMENT if the text is neither a name nor
// an absolute path, NOT_FOUND with all directories searched and the most similar name. Callers exit
// with 3.
std::string find_backend(const std::string& name_or_path, const std::vector<SearchDir>& dirs);

struct Unsafe {
  std::string reason;  // why another user could replace the file; "" = safe
  std::string fix;     // command or action for the user
};

// Checks that no other user could have placed code of theirs in the file. The file and its
// directory must belong to root or to this user, and nobody else may write to them. No folder above
// it may be writable by everybody, unless it is sticky. For a symbolic link, the link and its
// target are checked.
Unsafe unsafe_reason(const std::string& file);

bool is_backend_name(const std::string& name);  // true for [a-z][a-z0-9_]*

}  // namespace yoke
