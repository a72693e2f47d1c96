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

// Boost wraps the loader's sentence in a frame and ends it with an unrelated errno ("Bad file
// descriptor").
std::string loader_text(const std::string& what) {
  const std::string opening = "(dlerror system message: ";
  const size_t begin = what.find(opening);
  const size_t end = what.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) return what;
  return what.substr(begin + opening.size(), end - begin - opening.size());
}

std::string fix_for(const std::string& text) {
  if (text.find("undefined symbol") != std::string::npos) {
    return "link what defines that symbol into the backend (-Wl,-z,defs finds it when it is built)";
  }
  if (text.find("cannot open shared object file") != std::string::npos) {
    return "install that library, or give the backend a run path to it";
  }
  if (text.find("version `") != std::string::npos)
    return "build the backend on this machine, or on an older one";
  return "build it again on this machine";
}

dll::shared_library open_library(const std::string& path) {
  // NOW: an unresolved symbol must show here and not in the middle of a step. NODELETE, and the
  // registry below: code of a backend may outlive every handle (threads, thread_local destructors).
  const auto mode = dll::load_mode::rtld_now | dll::load_mode::rtld_local |
                    static_cast<dll::load_mode::type>(RTLD_NODELETE);
  try {
    // The overloads with an error_code lose the loader's text.
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
                    err.text[0] != '\0' ? err.text : "it returned NULL and no reason",
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
  // Leaked on purpose: no destructor of a library runs at exit while a thread may still be in it.
  static auto& registry = *new std::map<std::pair<dev_t, ino_t>, Library>;
  static std::mutex mutex;
  check_library_file(path);
  struct stat info {};
  ::stat(path.c_str(), &info);
  const std::lock_guard lock(mutex);
  // By file and not by path: a library reached through a symbolic link is the same library.
  const std::pair key{info.st_dev, info.st_ino};
  auto found = registry.find(key);
  if (found == registry.end()) found = registry.emplace(key, open_backend(path)).first;
  return found->second.backend;
}

}  // namespace yoke
