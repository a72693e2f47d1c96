#include "sdk/conformance/library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "sdk/conformance/progress.hpp"
#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {

void* open_library(const std::string& path) {
  void* library = call_backend("dlopen (a constructor of the library)", [&] {
    return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  });
  if (library == nullptr) throw Failed(concat("the dynamic loader refuses it: ", ::dlerror()));
  return library;
}

YokeEntry find_entry(void* library) {
  void* symbol = ::dlsym(library, YOKE_ENTRY_SYMBOL);
  if (symbol == nullptr) throw Failed("it has no symbol " YOKE_ENTRY_SYMBOL);
  return reinterpret_cast<YokeEntry>(symbol);
}

const ParallelBackend& load_table(const std::string& path) {
  const YokeEntry entry = find_entry(open_library(path));
  YokeError err = make_error();
  const ParallelBackend* table = call_backend("entry", [&] { return entry(YOKE_ABI_MINOR, &err); });
  if (table == nullptr) throw Failed(concat("entry returned NULL with the text '", err.text, "'"));
  return *table;
}

YokeDescription description_of(const ParallelBackend& backend) {
  const YokeDescription* theirs = nullptr;
  YokeError err = make_error();
  const int32_t code = call_backend("describe", [&] { return backend.describe(&theirs, &err); });
  if (code != YOKE_OK || theirs == nullptr)
    throw Failed(concat("describe returned ", code, " ('", err.text, "')") +
                 (theirs == nullptr ? " and no description" : ""));
  YokeDescription copy{};
  std::memcpy(
      static_cast<void*>(&copy), theirs, std::min<size_t>(theirs->header.struct_size, sizeof copy));
  return copy;
}

}  // namespace yoke::conformance
