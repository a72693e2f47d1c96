// Backends that the run's backend stands on ("yoke.backends/1"): found, loaded and given their
// options by the rules for the run's own. No LibTorch.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/backend/loaded_backend.hpp"
#include "core/config/options.hpp"

namespace yoke {

// Of one process; shared by its ranks. Any thread.
class InnerBackends {
 public:
  struct Inner {
    LoadedBackend backend;
    OptionList options;  // [its name] of the run file, defaults filled in
  };

  explicit InnerBackends(const RunConfig& run);
  InnerBackends(const InnerBackends&) = delete;
  InnerBackends& operator=(const InnerBackends&) = delete;

  // The same object at every call. Throws Error if there is no such backend, if it cannot be used,
  // or for every fault of its options.
  const Inner& open(const std::string& name);

  std::vector<const Inner*> opened() const;
  // Did open() refuse one because it cannot be found or loaded?
  bool any_unusable() const;

  // To be chained on YokePlanArgs; lives as long as this.
  const YokeHeader* for_plan() const { return &service_.header; }
  // What `open` of the contract writes; host: may be NULL.
  static YokeInnerBackend contract(const Inner& inner, const YokeHost* host);

 private:
  const std::vector<std::string> backend_path_;
  const std::vector<BackendOption> given_;
  mutable std::mutex mutex_;
  std::map<std::string, Inner> opened_;
  bool any_unusable_ = false;
  YokeBackends service_;
};

}  // namespace yoke
