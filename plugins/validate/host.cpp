#include "plugins/validate/host.hpp"

#include <string_view>

#include "sdk/conformance/log_line.hpp"
#include "yoke/tensor.hpp"

namespace yoke::validate {

struct WatchedHost::Slots {
  static WatchedHost& self(void* ctx) { return *static_cast<WatchedHost*>(ctx); }

  static void log(void* ctx, int32_t level, YokeString text) {
    WatchedHost& host = self(ctx);
    Stopwatch watch(host.monitor_);
    const std::string fault = conformance::log_line_fault(level, text);
    if (!fault.empty()) host.monitor_.violated(Rule::kLogLines, "log", fault);
    watch.forward([&] { host.real_.log(host.real_.ctx, level, text); });
    host.trace("log", watch, Fields().add("level", int64_t{level}));
  }

  static int32_t check_cancel(void* ctx) {
    WatchedHost& host = self(ctx);
    Stopwatch watch(host.monitor_);
    ++host.cancel_checks_;
    const int32_t stop = watch.forward([&] { return host.real_.check_cancel(host.real_.ctx); });
    host.trace("check_cancel", watch, Fields().add("stop", int64_t{stop}));
    return stop;
  }

  static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
    WatchedHost& host = self(ctx);
    Stopwatch watch(host.monitor_);
    const YokeHeader* found =
        watch.forward([&] { return host.real_.get_service(host.real_.ctx, name, min_size); });
    Fields fields;
    fields.add("service", name == nullptr ? "" : name);
    fields.add("bytes", int64_t{found == nullptr ? 0 : found->struct_size});
    host.trace("get_service", watch, fields);
    if (found == nullptr) return nullptr;
    const std::string_view service = name;
    const YokeHeader* mine = found;
    if (service == "yoke.collectives/1")
      mine = host.watch_collectives(*reinterpret_cast<const YokeCollectives*>(found));
    if (service == "yoke.backends/1")
      mine = host.watch_backends(*reinterpret_cast<const YokeBackends*>(found));
    // The table of a newer host is longer than that of this backend.
    return mine->struct_size >= min_size ? mine : nullptr;
  }

  static int32_t open(
      void* ctx, const char* name, uint32_t axes, YokeInnerBackend* out, YokeError* err) {
    WatchedHost& host = self(ctx);
    Stopwatch watch(host.monitor_);
    const YokeBackends& real = *host.real_backends_;
    const int32_t code = watch.forward([&] { return real.open(real.ctx, name, axes, out, err); });
    host.monitor_.trace_call(
        "backend", "open", code, watch, Fields().add("name", name == nullptr ? "" : name));
    if (code == YOKE_OK) out->host = host.part(out->host, axes & host.axes_);
    return code;
  }
};

WatchedHost::WatchedHost(const YokeHost& real, uint32_t axes, Monitor& monitor)
    : real_(real), axes_(axes), monitor_(monitor), host_(copied(real)) {
  host_.ctx = this;
  host_.log = Slots::log;
  host_.check_cancel = Slots::check_cancel;
  host_.get_service = Slots::get_service;
}

const YokeHeader* WatchedHost::watch_collectives(const YokeCollectives& real) {
  const std::lock_guard lock(mutex_);
  if (!collectives_)
    collectives_ = std::make_unique<WatchedCollectives>(host_, axes_, real, monitor_);
  return &collectives_->table().header;
}

const YokeHeader* WatchedHost::watch_backends(const YokeBackends& real) {
  const std::lock_guard lock(mutex_);
  real_backends_ = &real;
  backends_ = copied(real);
  backends_.ctx = this;
  backends_.open = Slots::open;
  return &backends_.header;
}

const YokeHost* WatchedHost::part(const YokeHost* real, uint32_t axes) {
  if (real == &real_) return &host_;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<WatchedHost>& known = parts_[real];
  if (!known) known = std::make_unique<WatchedHost>(*real, axes, monitor_);
  return &known->host_;
}

int64_t WatchedHost::take_cancel_checks() {
  const std::lock_guard lock(mutex_);
  int64_t checks = cancel_checks_.exchange(0);
  for (const auto& [real, host] : parts_) checks += host->take_cancel_checks();
  return checks;
}

std::vector<WatchedCollectives::Issued> WatchedHost::take_issued() {
  const std::lock_guard lock(mutex_);
  std::vector<WatchedCollectives::Issued> list;
  if (collectives_) list = collectives_->take_issued();
  for (const auto& [real, host] : parts_) {
    const auto more = host->take_issued();
    list.insert(list.end(), more.begin(), more.end());
  }
  return list;
}

void WatchedHost::check_works() {
  const std::lock_guard lock(mutex_);
  if (collectives_) collectives_->check_works();
  for (const auto& [real, host] : parts_) host->check_works();
}

void WatchedHost::trace(const char* name, const Stopwatch& watch, const Fields& fields) {
  monitor_.trace_call("backend", name, YOKE_OK, watch, fields);
}

}  // namespace yoke::validate
