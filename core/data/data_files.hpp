// The files that data.path and eval.path name. No LibTorch.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Returns the files that one entry of a list of paths names: the file itself; all files of a
// folder; or all files that match a pattern with *, ? or [...]. Files of a folder or of a pattern
// are in ascending order of their bytes. Names that start with '.' are left out, and so are the
// descriptions and label masks (core/data/token_info.hpp) and the indices and metadata of other
// files of the list. X means X.bin if X does not exist, but X.bin and X.idx do. Any other entry
// that does not exist and is no pattern is returned as it is, since opening it reports the fault.
// `key` is the key of the run file, for messages. Throws Error: NOT_FOUND if no file matches,
// INVALID_ARGUMENT if a folder contains a folder, or if a match is one.
std::vector<std::string> expand_path(const std::string& key, const std::string& entry);

// Returns `data.path = "x"`, with which messages about a file start.
std::string path_is(const std::string& key, const std::string& path);

// Returns "; nearest names in F: a, b, c" for a path that does not exist, where F is the folder
// that lacks it, or its nearest parent that exists, or says that F has no similar name.
std::string nearest_names(const std::string& path);

// Returns a path that is the same file as an earlier one of the list, under any name; "" if there
// is none.
std::string find_repeated_file(const std::vector<std::string>& paths);

}  // namespace yoke
