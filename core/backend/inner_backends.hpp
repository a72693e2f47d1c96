// Inner backends: other backends that the run's backend opens, through the service
// "yoke.backends/1", to do a part of its work. They are found, loaded and given options by the same
// rules as the run's own backend. No LibTorch.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/config/options.hpp"

namespace yoke {

// All inner backends of one process. Ranks that are threads share this object. Thread-safe.
class InnerBackends {
 public:
  struct Inner {
    LoadedBackend backend;
    OptionList options;  // table [NAME] of the run file, with defaults filled in
  };

  explicit InnerBackends(const RunConfig& run);
  InnerBackends(const InnerBackends&) = delete;
  InnerBackends& operator=(const InnerBackends&) = delete;

  // Finds and loads a backend, and checks its options, at the first call; returns the same object
  // afterwards. Throws Error if it is not found or cannot be loaded, and ConfigError if its options
  // are wrong.
  const Inner& open(const std::string& name);

  std::vector<const Inner*> opened() const;  // all backends opened so far
  // Returns true if open() failed because a backend was not found or could not be loaded. The run
  // then ends with exit code 3, as it does if its own backend cannot be used.
  bool any_unusable() const;

  // Returns the service to chain on YokePlanArgs. It lives as long as this object.
  const YokeHeader* for_plan() const { return &service_.header; }
  // Returns the struct that the contract's `open` fills in. `host` is NULL while planning, when no
  // host exists.
  static YokeInnerBackend contract(const Inner& inner, const YokeHost* host);

 private:
  const std::vector<std::string> backend_path_;
  const std::vector<BackendOption> given_;
  mutable std::mutex mutex_;
  std::map<std::string, Inner> opened_;
  bool any_unusable_ = false;
  YokeBackends service_;
};

// Return the traits and the kinds of state of a backend. If it declares YOKE_BY_OPTIONS, they
// include those of the backends that it has opened: a backend on top of another one cannot know
// them in describe.
uint32_t traits_of(const LoadedBackend& backend, const InnerBackends& inner);
std::vector<StateKind> state_kinds_of(const LoadedBackend& backend, const InnerBackends& inner);

}  // namespace yoke
