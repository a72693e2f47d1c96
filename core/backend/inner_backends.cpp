// A backend's plan() may open other backends to ask whether they accept its plan. This service has
// two forms: here without a host, for plan(), and in services.cpp with a host, for init() and later
// calls. Both share this registry, so that each backend is loaded, and its options are checked,
// only once per process.
#include "core/backend/inner_backends.hpp"

#include "core/backend/loader.hpp"
#include "core/backend/search.hpp"
#include "yoke/backend.hpp"

namespace yoke {
namespace {

int32_t open_for_plan(
    void* ctx, const char* name, uint32_t, YokeInnerBackend* out, YokeError* err) {
  return guard(err, [&] {
    if (name == nullptr || out == nullptr)
      throw Error(YOKE_INVALID_ARGUMENT, "open: name or out is NULL");
    const auto& inner = static_cast<InnerBackends*>(ctx)->open(name);
    write_result(out, InnerBackends::contract(inner, nullptr));
  });
}

}  // namespace

InnerBackends::InnerBackends(const RunConfig& run)
    : backend_path_(run.backend_path),
      given_(run.backend_options),
      service_{YOKE_HEADER(YokeBackends, YOKE_ID_BACKENDS), this, open_for_plan} {}

const InnerBackends::Inner& InnerBackends::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (const auto known = opened_.find(name); known != opened_.end()) return known->second;
  // Only a backend that is missing or broken counts as unusable. Wrong options are an error of the
  // configuration and have a different exit code.
  const LoadedBackend backend = [&] {
    try {
      return load_backend(find_backend(name, search_dirs(SearchSettings::current(backend_path_))));
    } catch (const Error&) {
      any_unusable_ = true;
      throw;
    }
  }();
  OptionList options = check_options(given_,
                                     {backend.name(), "backend '" + backend.name() + "'"},
                                     option_infos(backend.description()));
  return opened_.emplace(name, Inner{backend, std::move(options)}).first->second;
}

std::vector<const InnerBackends::Inner*> InnerBackends::opened() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Inner*> list;
  for (const auto& [name, inner] : opened_) list.push_back(&inner);
  return list;
}

bool InnerBackends::any_unusable() const {
  const std::lock_guard lock(mutex_);
  return any_unusable_;
}

YokeInnerBackend InnerBackends::contract(const Inner& inner, const YokeHost* host) {
  return {YOKE_HEADER(YokeInnerBackend, YOKE_ID_INNER_BACKEND),
          &inner.backend.table(),
          inner.options.data(),
          inner.options.size(),
          host};
}

namespace {

// Calls f(description) of a backend and, if it declares YOKE_BY_OPTIONS, of those that it has
// opened.
template <class F>
void for_each_description(const LoadedBackend& backend, const InnerBackends& inner, F&& f) {
  f(backend.description());
  if ((backend.description().traits & YOKE_BY_OPTIONS) == 0) return;
  for (const InnerBackends::Inner* opened : inner.opened()) f(opened->backend.description());
}

}  // namespace

uint32_t traits_of(const LoadedBackend& backend, const InnerBackends& inner) {
  uint32_t traits = 0;
  for_each_description(
      backend, inner, [&](const YokeDescription& description) { traits |= description.traits; });
  return traits;
}

std::vector<StateKind> state_kinds_of(const LoadedBackend& backend, const InnerBackends& inner) {
  std::vector<StateKind> kinds;
  for_each_description(backend, inner, [&](const YokeDescription& description) {
    for (StateKind& kind : state_kinds(description)) kinds.push_back(std::move(kind));
  });
  return kinds;
}

}  // namespace yoke
