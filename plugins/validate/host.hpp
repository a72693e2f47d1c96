// The host that the inner backend gets: that of this rank, with every call checked and traced.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "plugins/validate/collectives.hpp"

namespace yoke::validate {

// Any thread, as a YokeHost. It outlives the context of the inner backend.
class WatchedHost {
 public:
  // axes: those of the world of `real`.
  WatchedHost(const YokeHost& real, uint32_t axes, Monitor& monitor);
  WatchedHost(const WatchedHost&) = delete;
  WatchedHost& operator=(const WatchedHost&) = delete;

  const YokeHost& host() const { return host_; }

  // These include the hosts of the backends that the inner backend has opened itself.
  // Returns the number of calls of check_cancel since the last call of this function.
  int64_t take_cancel_checks();
  // Returns the collective operations since the last call, see WatchedCollectives.
  std::vector<WatchedCollectives::Issued> take_issued();
  void check_works();

 private:
  struct Slots;
  void trace(const char* name, const Stopwatch& watch, const Fields& fields);
  const YokeHeader* watch_collectives(const YokeCollectives& real);
  const YokeHeader* watch_backends(const YokeBackends& real);
  // Returns the host of an opened backend, around that of the service.
  const YokeHost* part(const YokeHost* real, uint32_t axes);

  const YokeHost& real_;
  const uint32_t axes_;
  Monitor& monitor_;
  YokeHost host_;
  std::mutex mutex_;
  std::unique_ptr<WatchedCollectives> collectives_;
  const YokeBackends* real_backends_ = nullptr;
  YokeBackends backends_{};
  std::map<const YokeHost*, std::unique_ptr<WatchedHost>> parts_;
  std::atomic<int64_t> cancel_checks_{0};
};

}  // namespace yoke::validate
