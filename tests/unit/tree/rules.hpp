// The rules of CONTRIBUTING.md that a program can check. Each function reads the tree below `root`
// and returns one line for each violation, which names the file.
#pragma once

#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace yoke::tree {

using Violations = std::vector<std::string>;
using Path = std::filesystem::path;

// Finds lines that match `forbidden` in the C, C++ and CUDA files below root/folder.
Violations lines_matching(const Path& root, const std::string& folder, const std::regex& forbidden);

// The folders of core/, lowest first: a file may include files of its own folder and of folders
// that are listed before it. "core" is the root of core/, with train.cpp and main.cpp.
extern const std::vector<std::string> kFolderOrder;

// Finds includes of a folder that comes later in kFolderOrder or is not in it. Without such
// includes there is no cycle between folders.
Violations upward_includes(const Path& root);

// Returns the pairs (from, to) of folders of core/ such that a file of `from` includes a file of
// `to`.
std::vector<std::pair<std::string, std::string>> folder_arrows(const Path& root);

// Finds lines of sources and documents that contain a word of the table "Avoided words" in
// CONTRIBUTING.md. A row is a regular expression between backticks, which matches whole words with
// or without an initial capital.
Violations avoided_words(const Path& root);

// Finds comments behind code that begin with a preposition instead of a noun: "of the run file".
Violations trailing_fragments(const Path& root);

// Finds lines of comments that are wider than kMaxColumns, which clang-format does not wrap.
inline constexpr int kMaxColumns = 100;
Violations wide_comments(const Path& root);

// Finds files of more than kMaxFileLines lines.
inline constexpr int kMaxFileLines = 400;
Violations long_files(const Path& root);

// Finds functions of more than kMaxFunctionLines lines or kMaxParameters parameters, with ctags.
// Numeric kernels may have more parameters, because they take a tensor as a pointer and its sizes.
inline constexpr int kMaxFunctionLines = 60;
inline constexpr int kMaxParameters = 6;
Violations large_functions(const Path& root);

// Finds files that clang-format would change.
Violations unformatted_files(const Path& root);

// Finds lines of sources that name a Markdown file which exists neither below the root nor in the
// folder of the source.
Violations missing_documents(const Path& root);

// Returns whether `program` can be started.
bool has_program(const std::string& program);

}  // namespace yoke::tree
