#include "core/backend/backend_events.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "yoke/error.hpp"
#include "yoke/text.hpp"

namespace yoke {
namespace {

void require_length(std::string_view name, const char* what) {
  if (!name.empty() && name.size() <= BackendEvents::kMaxName) return;
  throw Error(YOKE_INVALID_ARGUMENT,
              concat(what, ": the name has ", name.size(), " bytes; allowed: 1 to ") +
                  concat(BackendEvents::kMaxName));
}

}  // namespace

int64_t BackendEvents::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void BackendEvents::span(std::string_view name, int64_t begin, int64_t end) {
  require_length(name, "span");
  if (end < begin) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("span '", name, "' ends ", begin - end, " ns before it begins"));
  }
  const std::lock_guard lock(mutex_);
  if (!recording_) return;
  if (spans_.size() >= kMaxSpans) {
    ++dropped_;
    throw Error(YOKE_RESOURCE_EXHAUSTED,
                concat("span '", name, "': more than ", kMaxSpans, " spans in a step"));
  }
  spans_.push_back({std::string(name), begin, end, syscall(SYS_gettid)});
}

void BackendEvents::metric(std::string_view name, double value) {
  require_length(name, "metric");
  const bool legal = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!legal) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat("metric '", name, "'; allowed: lower-case letters, digits and _"));
  }
  const std::lock_guard lock(mutex_);
  if (names_.find(name) == names_.end()) {
    if (names_.size() >= kMaxMetrics) {
      ++dropped_;
      throw Error(YOKE_RESOURCE_EXHAUSTED,
                  concat("metric '", name, "': more than ", kMaxMetrics, " different names"));
    }
    names_.emplace(name);
  }
  metrics_.insert_or_assign(std::string(name), value);
}

void BackendEvents::record(bool on) {
  const std::lock_guard lock(mutex_);
  recording_ = on;
}

std::vector<BackendEvents::Span> BackendEvents::take_spans() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

std::map<std::string, double> BackendEvents::take_metrics() {
  const std::lock_guard lock(mutex_);
  std::map<std::string, double> taken(metrics_.begin(), metrics_.end());
  metrics_.clear();
  return taken;
}

int64_t BackendEvents::take_dropped() {
  const std::lock_guard lock(mutex_);
  return std::exchange(dropped_, 0);
}

}  // namespace yoke
