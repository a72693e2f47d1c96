// Where backends are looked for, and which file a name means. No LibTorch; nothing is loaded here.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// What the search depends on.
struct SearchSettings {
  std::vector<std::string> config_path;  // backend_path of the run file
  std::string env_path;                  // YOKE_BACKEND_PATH, separated by ':'
  std::string data_home;  // $XDG_DATA_HOME, else ~/.local/share; "" = neither is known
  std::string lib_dir;    // of libyoke_worker.so, or <our bin>/../lib

  // Of this process: reads the environment and where its program lies.
  static SearchSettings current(std::vector<std::string> config_path = {});
};

// One directory, first come, first served.
struct SearchDir {
  std::string path;
  std::string origin;   // "backend_path", "YOKE_BACKEND_PATH", ...
  std::string problem;  // why nothing is taken from it: "does not exist"; "" = it is searched
};

// A file <name>.so in one of the directories.
struct Candidate {
  std::string name;
  std::string path;
  std::string problem;  // why it cannot be used: unsafe owner or mode, a name that is not allowed
  std::string shadowed_by;  // path of the one that is taken instead; "" = this one is
};

// In the order of DESIGN: config, YOKE_BACKEND_PATH, data home, our lib folder, /usr/local/lib. A
// directory named twice appears once.
std::vector<SearchDir> search_dirs(const SearchSettings& settings);

// Every candidate, also those that cannot be used, sorted by name, then by order of the
// directories. The first one of a name is taken even if it is unusable: a broken file must not be
// replaced silently.
std::vector<Candidate> list_candidates(const std::vector<SearchDir>& dirs);

// Names of the candidates that are taken, given backend_path of a run file.
std::vector<std::string> backend_names(const std::vector<std::string>& config_path);

// The file that a name, or an absolute path, means; whether it can be used is for
// check_library_file. Throws Error: INVALID_ARGUMENT if it is neither, NOT_FOUND with every
// directory searched and the nearest name. Callers exit with 3.
std::string find_backend(const std::string& name_or_path, const std::vector<SearchDir>& dirs);

struct Unsafe {
  std::string reason;  // "" = safe
  std::string fix;     // what to do or run
};

// Safe: file and directory belong to root or to this user and nobody else may write to them; a
// folder above is not writable by everybody, unless it is sticky. Follows symbolic links and judges
// both ends.
Unsafe unsafe_reason(const std::string& file);

bool is_backend_name(const std::string& name);  // [a-z][a-z0-9_]*

}  // namespace yoke
