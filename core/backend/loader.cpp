// Backends are never unloaded. A backend may have started threads, registered thread_local
// destructors or passed callbacks to LibTorch, and none of these can be withdrawn before dlclose().
// A leaked registry and RTLD_NODELETE keep the code mapped until the process ends.
//
// Boost.DLL provides the load flags and the typed symbol. dlmopen() was rejected: it would give
// each backend its own copy of the C++ runtime and of LibTorch.
#include "core/backend/loader.hpp"

// Header-only with std::filesystem: no Boost library is linked.
#define BOOST_DLL_USE_STD_FS
#include <dlfcn.h>
#include <sys/stat.h>

#include <boost/dll/shared_library.hpp>
#include <filesystem>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/backend/library_file.hpp"
#include "core/backend/reject.hpp"

namespace yoke {
namespace {

namespace dll = boost::dll;

struct Library {
  dll::shared_library handle;
  LoadedBackend backend;
};

// Extracts the dynamic loader's own sentence from the message of Boost, which wraps it in other
// text and appends an unrelated errno ("Bad file descriptor").
std::string loader_text(const std::string& what) {
  const std::string opening = "(dlerror system message: ";
  const size_t begin = what.find(opening);
  const size_t end = what.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return what;
  return what.substr(begin + opening.size(), end - begin - opening.size());
}

std::string fix_for(const std::string& text) {
  if (text.find("undefined symbol") != std::string::npos) {
    return "link the library that defines the symbol (-Wl,-z,defs reports it when you link)";
  }
  if (text.find("cannot open shared object file") != std::string::npos) {
    return "install that library, or give the backend a run path to it";
  }
  if (text.find("version `") != std::string::npos)
    return "build the backend on this machine, or on an older one";
  return "build it again on this machine";
}

dll::shared_library open_library(const std::string& path) {
  // RTLD_NOW: an unresolved symbol must be reported here and not in the middle of a step.
  const auto mode = dll::load_mode::rtld_now | dll::load_mode::rtld_local |
                    static_cast<dll::load_mode::type>(RTLD_NODELETE);
  try {
    // The overload with an error_code would lose the loader's text.
    return dll::shared_library(std::filesystem::path(path), mode);
  } catch (const std::exception& e) {
    const std::string text = loader_text(e.what());
    throw_rejected(YOKE_FAILED_PRECONDITION, {path, "loading", text, "unknown", fix_for(text)});
  }
}

const ParallelBackend* call_entry(const dll::shared_library& library, const std::string& path) {
  const auto& entry = library.get<std::remove_pointer_t<YokeEntry>>(YOKE_ENTRY_SYMBOL);
  YokeError err = make_error();
  const ParallelBackend* table = entry(YOKE_ABI_MINOR, &err);
  if (table == nullptr) {
    throw_rejected(err.code == YOKE_OK ? YOKE_FAILED_PRECONDITION : err.code,
                   {path,
                    "its entry function " YOKE_ENTRY_SYMBOL,
                    err.text[0] != '\0' ? err.text : "it returned NULL without a reason",
                    "unknown",
                    "see the backend's own documentation"});
  }
  return table;
}

Library open_backend(const std::string& path) {
  dll::shared_library library = open_library(path);
  LoadedBackend backend(call_entry(library, path), path);
  return {std::move(library), std::move(backend)};
}

}  // namespace

LoadedBackend load_backend(const std::string& path) {
  // Leaked on purpose: at exit, no library may be unloaded while a thread may still run its code.
  static auto& registry = *new std::map<std::pair<dev_t, ino_t>, Library>;
  static std::mutex mutex;
  check_library_file(path);
  struct stat info {};
  ::stat(path.c_str(), &info);
  const std::lock_guard lock(mutex);
  // The key is the file, not the path: through a symbolic link it is the same library.
  const std::pair key{info.st_dev, info.st_ino};
  auto found = registry.find(key);
  if (found == registry.end()) found = registry.emplace(key, open_backend(path)).first;
  return found->second.backend;
}

}  // namespace yoke
