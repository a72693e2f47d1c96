#include "tests/unit/tree/rules.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

namespace yoke::tree {
namespace {

namespace fs = std::filesystem;

// This folder contains violations as test data.
constexpr const char* kOwnFolder = "tests/unit/tree/";

struct Line {
  std::string file;  // relative to the root
  int number = 0;
  std::string text;
  std::string where() const { return file + ":" + std::to_string(number); }
};

const std::regex kCode(R"(\.(c|cpp|h|hpp|cu)$)");
const std::regex kCodeOrDocument(R"(\.(c|cpp|h|hpp|cu|py|md|toml|cmake)$|^CMakeLists\.txt$)");

// Returns the files of the project. Works without git, so it excludes build folders and outputs by
// name.
std::vector<std::string> files_below(const Path& root,
                                     const std::string& folder,
                                     const std::regex& names) {
  static const std::set<std::string> kSkipped = {".git", "data", "runs", "__pycache__"};
  std::vector<std::string> files;
  if (!fs::exists(root / folder)) return files;
  for (auto it = fs::recursive_directory_iterator(root / folder); it != fs::end(it); ++it) {
    const std::string name = it->path().filename().string();
    const bool skipped = kSkipped.count(name) != 0 || name.rfind("build", 0) == 0;
    if (it->is_directory() && skipped && it->path().parent_path() == root)
      it.disable_recursion_pending();
    if (it->is_regular_file() && std::regex_search(name, names))
      files.push_back(fs::relative(it->path(), root).string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Line> lines_of(const Path& root, const std::string& file) {
  std::vector<Line> lines;
  std::ifstream in(root / file);
  std::string text;
  for (int n = 1; std::getline(in, text); ++n) lines.push_back({file, n, text});
  return lines;
}

std::vector<Line> lines_below(const Path& root,
                              const std::string& folder,
                              const std::regex& names) {
  std::vector<Line> lines;
  for (const std::string& file : files_below(root, folder, names)) {
    std::vector<Line> more = lines_of(root, file);
    std::move(more.begin(), more.end(), std::back_inserter(lines));
  }
  return lines;
}

// Returns the text that a command prints to standard output and standard error.
std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((command + " 2>&1").c_str(), "r"),
                                                   ::pclose);
  if (pipe == nullptr) throw std::runtime_error("cannot start: " + command);
  std::string text;
  std::array<char, 4096> part;
  while (const size_t n = std::fread(part.data(), 1, part.size(), pipe.get()))
    text.append(part.data(), n);
  return text;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// A file that lists the paths of all sources, for programs that read such a list. The copies of
// released headers in sdk/abi never change and are left out.
class SourceList {
 public:
  explicit SourceList(const Path& root) : path_(fs::temp_directory_path() / unique_name()) {
    std::ofstream out(path_);
    for (const char* folder : {"core", "plugins", "sdk", "tests", "bench"}) {
      for (const std::string& file : files_below(root, folder, kCode))
        if (file.rfind("sdk/abi/", 0) != 0) out << (root / file).string() << "\n";
    }
  }
  ~SourceList() { fs::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  static std::string unique_name() {
    static int count = 0;
    return "yoke-sources-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
  }
  const Path path_;
};

std::string folder_of(const std::string& file) {
  const size_t first = file.find('/'), second = file.find('/', first + 1);
  return second == std::string::npos ? "core" : file.substr(first + 1, second - first - 1);
}

struct Include {
  Line line;
  std::string from, to;  // folders of core/
};

std::vector<Include> includes_between_folders(const Path& root) {
  static const std::regex kInclude(R"rx(^#include "(core/[^"]+)")rx");
  std::vector<Include> includes;
  for (const Line& line : lines_below(root, "core", kCode)) {
    std::smatch match;
    if (!std::regex_search(line.text, match, kInclude)) continue;
    const std::string from = folder_of(line.file), to = folder_of(match[1]);
    if (from != to) includes.push_back({line, from, to});
  }
  return includes;
}

// "const std::map<A, B>& a, int b" has two parameters.
int count_parameters(const std::string& signature) {
  int depth = 0, count = 0;
  bool any = false;
  for (const char c : signature.substr(1, signature.rfind(')') - 1)) {
    if (std::string("<([{").find(c) != std::string::npos) ++depth;
    if (std::string(">)]}").find(c) != std::string::npos) --depth;
    if (c == ',' && depth == 0) ++count;
    any = any || c != ' ';
  }
  return any && signature != "(void)" ? count + 1 : 0;
}

// Returns the regular expressions between backticks in CONTRIBUTING.md's table "Avoided words".
std::vector<std::string> avoided(const Path& root) {
  std::vector<std::string> words;
  bool inside = false;
  for (const Line& line : lines_of(root, "CONTRIBUTING.md")) {
    if (line.text.rfind("#", 0) == 0) inside = line.text.find("Avoided words") != std::string::npos;
    static const std::regex kRow(R"(^\| `([^`]+)` \|)");
    std::smatch match;
    // Inside a table, Markdown needs a backslash in front of "|".
    if (inside && std::regex_search(line.text, match, kRow))
      words.push_back(std::regex_replace(match[1].str(), std::regex(R"(\\\|)"), "|"));
  }
  return words;
}

}  // namespace

const std::vector<std::string> kFolderOrder = {
    "base",       "text",    "control",     "config",  "cuda",    "data",  "comm",
    "checkpoint", "kernels", "launch",      "metrics", "backend", "model", "verify",
    "run",        "compare", "conformance", "cli",     "core",    "worker"};

bool has_program(const std::string& program) {
  return output_of("command -v " + program) != "";
}

Violations lines_matching(const Path& root,
                          const std::string& folder,
                          const std::regex& forbidden) {
  Violations found;
  for (const Line& line : lines_below(root, folder, kCode))
    if (std::regex_search(line.text, forbidden)) found.push_back(line.where() + ": " + line.text);
  return found;
}

Violations upward_includes(const Path& root) {
  const auto place = [](const std::string& folder) {
    return std::find(kFolderOrder.begin(), kFolderOrder.end(), folder);
  };
  Violations found;
  for (const Include& i : includes_between_folders(root)) {
    if (place(i.from) == kFolderOrder.end() || place(i.to) == kFolderOrder.end()) {
      found.push_back(i.line.where() + ": a folder of core/ that kFolderOrder does not name");
    } else if (place(i.to) > place(i.from)) {
      found.push_back(i.line.where() + ": " + i.from + "/ may not include " + i.to +
                      "/, which is above it: " + i.line.text);
    }
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> folder_arrows(const Path& root) {
  std::set<std::pair<std::string, std::string>> arrows;
  for (const Include& i : includes_between_folders(root)) arrows.emplace(i.from, i.to);
  return {arrows.begin(), arrows.end()};
}

Violations trailing_fragments(const Path& root) {
  // A line that is nothing but a comment may be the middle of a sentence, or of an example.
  const std::regex pattern(R"(^\s*[^\s/*].*[;,{})]\s+/[/*] (of|by|in|from|with|for) )",
                           std::regex::optimize);
  Violations found;
  for (const Line& line : lines_below(root, "", kCode)) {
    const bool own = line.file.rfind(kOwnFolder, 0) == 0;
    if (own || line.file.rfind("sdk/abi/", 0) == 0) continue;
    if (std::regex_search(line.text, pattern)) found.push_back(line.where() + ": " + line.text);
  }
  return found;
}

// Returns the number of characters of a line in UTF-8.
int columns(const std::string& line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a further byte of a character
  }));
}

Violations wide_comments(const Path& root) {
  const std::regex comment(R"(^\s*(//|/?\*) )", std::regex::optimize);
  Violations found;
  for (const Line& line : lines_below(root, "", kCode)) {
    if (line.file.rfind("sdk/abi/", 0) == 0 || columns(line.text) <= kMaxColumns) continue;
    if (std::regex_search(line.text, comment)) found.push_back(line.where() + ": " + line.text);
  }
  return found;
}

Violations avoided_words(const Path& root) {
  const std::vector<std::string> words = avoided(root);
  if (words.empty()) return {"CONTRIBUTING.md: no table under 'Avoided words'"};
  std::string any;
  for (const std::string& word : words) {
    const char first = word[0], capital = static_cast<char>(std::toupper(first));
    any += any.empty() ? "" : "|";
    any += first == capital ? word : std::string{'[', first, capital, ']'} + word.substr(1);
  }
  const std::regex pattern("\\b(" + any + ")\\b", std::regex::optimize);
  Violations found;
  for (const Line& line : lines_below(root, "", kCodeOrDocument)) {
    std::smatch match;
    // The names of this file are in the frozen description of the contract's ABI.
    if (line.file == "tests/abi/gates/gates.py") continue;
    if (line.file == "CONTRIBUTING.md" || line.file.rfind("sdk/abi/", 0) == 0) continue;
    if (line.file.rfind(kOwnFolder, 0) == 0) continue;
    if (std::regex_search(line.text, match, pattern))
      found.push_back(line.where() + ": '" + match.str() + "' in: " + line.text);
  }
  return found;
}

Violations long_files(const Path& root) {
  // The contract is deliberately one file, however long.
  static const std::set<std::string> kLong = {"sdk/include/yoke/parallel_backend.h"};
  Violations found;
  for (const std::string& file : files_below(root, "", kCode)) {
    if (kLong.count(file) != 0 || file.rfind("sdk/abi/", 0) == 0) continue;
    const size_t lines = lines_of(root, file).size();
    if (lines > kMaxFileLines) found.push_back(file + ": " + std::to_string(lines) + " lines");
  }
  return found;
}

Violations large_functions(const Path& root) {
  // Some tables of keys are functions, because their rows cannot be written as aggregates.
  static const std::set<std::string> kTables = {
      "run_keys", "training_keys", "lr_schedule_keys", "option_infos"};
  // Functions of a table of the contract have the parameters that it gives them.
  static const std::set<std::string> kOfContract = {"all_to_all"};
  static const std::regex kNumericKernels(R"(core/kernels/|/kernels/|_kernels)");
  const SourceList sources(root);
  const std::string tags = output_of(
      "ctags -L " + sources.path() +
      " --languages=C,C++ --langmap=C++:+.cu --kinds-C=f --kinds-C++=f --fields=neS -f -");
  Violations found;
  for (const std::string& tag : split_lines(tags)) {
    // name <tab> file <tab> pattern;" <tab> line:N <tab> signature:(...) <tab> end:N
    static const std::regex kTag(R"(^([^\t]+)\t([^\t]+)\t.*\tline:(\d+)(?:\t.*)?$)");
    static const std::regex kEnd(R"(\tend:(\d+))"), kSignature(R"(\tsignature:([^\t]*))");
    std::smatch tag_match, end, signature;
    if (!std::regex_search(tag, tag_match, kTag) || !std::regex_search(tag, end, kEnd)) continue;
    const std::string file = fs::relative(tag_match[2].str(), root).string();
    const std::string where = file + ":" + tag_match[3].str() + ": " + tag_match[1].str();
    const int lines = std::stoi(end[1]) - std::stoi(tag_match[3]) + 1;
    if (lines > kMaxFunctionLines && kTables.count(tag_match[1]) == 0)
      found.push_back(where + " has " + std::to_string(lines) + " lines");
    if (!std::regex_search(tag, signature, kSignature)) continue;
    const int parameters = count_parameters(signature[1]);
    const bool may =
        std::regex_search(file, kNumericKernels) || kOfContract.count(tag_match[1]) != 0;
    if (parameters > kMaxParameters && !may)
      found.push_back(where + " has " + std::to_string(parameters) + " parameters");
  }
  return found;
}

Violations unformatted_files(const Path& root) {
  const SourceList sources(root);
  const std::string report =
      output_of("xargs clang-format --dry-run --style=file <" + sources.path());
  static const std::regex kWarning(R"(^(.+):(\d+):\d+: (warning: code should be|error:))");
  std::map<std::string, std::string> first;  // line of the first difference of a file
  for (const std::string& line : split_lines(report)) {
    std::smatch match;
    if (std::regex_search(line, match, kWarning)) first.emplace(match[1], match[2]);
  }
  Violations found;
  for (const auto& [file, line] : first)
    found.push_back(fs::relative(file, root).string() + ":" + line + ": run clang-format -i on it");
  return found;
}

Violations missing_documents(const Path& root) {
  static const std::regex kDocument(R"(\b((?:[a-z_]+/)*[A-Za-z_]+\.md)\b)");
  Violations found;
  for (const char* folder : {"core", "plugins", "sdk", "tests", "bench"}) {
    for (const Line& line : lines_below(root, folder, kCode)) {
      std::smatch match;
      if (line.file.rfind(kOwnFolder, 0) == 0) continue;
      if (!std::regex_search(line.text, match, kDocument)) continue;
      const Path beside = Path(line.file).parent_path() / match[1].str();
      if (!fs::exists(root / match[1].str()) && !fs::exists(root / beside))
        found.push_back(line.where() + ": " + match[1].str() + " does not exist: " + line.text);
    }
  }
  return found;
}

}  // namespace yoke::tree
