// The checks of level S: the file, before any of its code runs.
#include <gnu/libc-version.h>

#include <algorithm>
#include <cstdlib>

#include "sdk/conformance/level.hpp"
#include "yoke/parallel_backend.h"
#include "yoke/text.hpp"

namespace yoke::conformance {
namespace {

// Joins up to `most` words with commas.
std::string list(const std::vector<std::string>& words, size_t most = 6) {
  std::string text;
  for (size_t i = 0; i < words.size() && i < most; ++i) text += (i == 0 ? "" : ", ") + words[i];
  if (words.size() > most) text += concat(" and ", words.size() - most, " more");
  return text;
}

std::string machine(const LibraryFile& file) {
  if (!file.unreadable.empty()) throw Failed(file.unreadable + "; " + file.unreadable_fix);
  return "";
}

std::string owner(const LibraryFile& file) {
  if (!file.unsafe.empty()) throw Failed(file.unsafe + "; " + file.unsafe_fix);
  return "";
}

std::string one_symbol(const LibraryFile& file) {
  std::vector<std::string> others = file.exported;
  std::erase(others, YOKE_ENTRY_SYMBOL);
  if (others.size() == file.exported.size()) throw Failed("it does not export " YOKE_ENTRY_SYMBOL);
  if (others.empty()) return "";
  throw Failed(concat(
      "it exports ", others.size(), " symbol(s) besides " YOKE_ENTRY_SYMBOL ": ", list(others)));
}

// A library that backends of Yoke share (sdk/mesh). The host does not link it.
constexpr std::string_view kSharedByBackends = "libyoke_mesh.so";

// The contract passes all functions of the host in tables, so a backend needs none of the host's
// symbols.
std::string nothing_of_the_host(const LibraryFile& file) {
  const bool shares = std::count(file.needed.begin(), file.needed.end(), kSharedByBackends) > 0;
  std::vector<std::string> ours;
  for (const std::string& symbol : file.undefined) {
    const bool is_shared =
        symbol.starts_with("_ZN4yoke4mesh") || symbol.starts_with("_ZNK4yoke4mesh");
    if (shares && is_shared) continue;
    if (symbol.starts_with("_ZN4yoke") || symbol.starts_with("_ZNK4yoke") ||
        symbol.starts_with("yoke_") || symbol.starts_with("parallel_backend_entry"))
      ours.push_back(symbol);
  }
  if (!ours.empty()) throw Failed("it needs symbols of the host: " + list(ours));
  return "";
}

std::string libraries(const LibraryFile& file) {
  for (const std::string& name : file.needed) {
    if (name.find('/') != std::string::npos)
      throw Failed(
          concat("it needs '", name, "' by a path, which may not exist on another machine"));
    if (name.starts_with("libyoke") && name != kSharedByBackends)
      throw Failed("it needs " + name + ", a library of the host");
  }
  return list(file.needed, 10);
}

std::string memory(const LibraryFile& file) {
  if (file.text_relocations)
    throw Failed(
        "it has text relocations (DT_TEXTREL), so its code is writable while it is loaded");
  if (file.executable_stack)
    throw Failed(
        "it requires an executable stack (PT_GNU_STACK), which the whole process would get");
  return "";
}

// Returns the version that follows the prefix as a number that can be compared, e.g. 2034 for
// "GLIBC_2.34". Returns 0 if `version` does not start with the prefix.
int release(const std::string& version, const std::string& prefix) {
  if (!version.starts_with(prefix)) return 0;
  char* end = nullptr;
  const long major = std::strtol(version.c_str() + prefix.size(), &end, 10);
  const long minor = *end == '.' ? std::strtol(end + 1, nullptr, 10) : 0;
  return static_cast<int>(major * 1000 + minor);
}

std::string c_library(const LibraryFile& file) {
  const std::string prefix = "GLIBC_";
  const auto newest = std::max_element(
      file.versions.begin(), file.versions.end(), [&](const auto& a, const auto& b) {
        return release(a, prefix) < release(b, prefix);
      });
  if (newest == file.versions.end() || release(*newest, prefix) == 0) return "it needs no GLIBC";
  const std::string ours = prefix + ::gnu_get_libc_version();
  if (release(*newest, prefix) > release(ours, prefix))
    throw Failed(concat("it needs ", *newest, ", but this machine has ", ours));
  return "it needs " + *newest;
}

constexpr Check kRows[] = {
    {"S1",
     "the file is a shared library for this machine",
     "The file is a complete ELF file: all of its tables lie inside it. It is a 64-bit, "
     "little-endian shared library for this processor and exports the entry symbol of this major "
     "version.",
     "build it with yoke_add_backend on this machine, and copy the whole file",
     nullptr,
     false,
     Fault::kToolchain,
     machine},
    {"S2",
     "nobody else can write to the file",
     "The file and its folder belong to root or to the user, and nobody else may write to them. "
     "Whoever can write to them chooses the code that every rank runs.",
     "chmod go-w on the file and its folder",
     nullptr,
     false,
     Fault::kPlugin,
     owner},
    {"S3",
     "it exports one symbol",
     "The dynamic symbol table defines " YOKE_ENTRY_SYMBOL
     " and nothing else, so that the symbols of two backends in one process cannot clash.",
     "build it with yoke_add_backend, or link with -fvisibility=hidden and a version script; nm -D "
     "--defined-only FILE lists the symbols",
     nullptr,
     false,
     Fault::kToolchain,
     one_symbol},
    {"S4",
     "it imports no symbol of the host",
     "None of its undefined symbols belongs to Yoke, because the contract passes everything in "
     "tables of functions. The dynamic loader checks the other undefined symbols (L1).",
     "call the services of YokeHost instead of functions of the host",
     nullptr,
     false,
     Fault::kPlugin,
     nothing_of_the_host},
    {"S5",
     "it names its libraries without paths",
     "No DT_NEEDED entry contains a path or names a library of the host.",
     "link libraries with -l, and put their folders into the run path",
     nullptr,
     false,
     Fault::kToolchain,
     libraries},
    {"S6",
     "its code is not writable and its stack is not executable",
     "There is no DT_TEXTREL, and PT_GNU_STACK lacks the execute flag.",
     "compile with -fPIC and link with -z noexecstack",
     nullptr,
     false,
     Fault::kToolchain,
     memory},
    {"S7",
     "the C library of this machine is new enough",
     "None of its symbols requires a GLIBC version newer than that of this machine. The required "
     "version is printed.",
     "build it on this machine, or on one with an older C library",
     nullptr,
     false,
     Fault::kToolchain,
     c_library},
};

}  // namespace

void add_static_checks(std::vector<Check>& table) {
  table.insert(table.end(), std::begin(kRows), std::end(kRows));
}

}  // namespace yoke::conformance
