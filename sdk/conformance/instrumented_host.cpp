// The wrapper copies the function table of the host and replaces the functions that it examines.
// Every table in the contract has a ctx, which here points to the wrapper. Collectives are the
// exception: they get a communicator or a work and no ctx, so a map from these to wrappers is used.
#include "sdk/conformance/instrumented_host.hpp"

#include <cstring>
#include <map>

#include "sdk/conformance/log_line.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::conformance {

struct InstrumentedHost::Slots {
  static InstrumentedHost& self(void* ctx) {
    auto& host = *static_cast<InstrumentedHost*>(ctx);
    ++host.calls;
    return host;
  }

  static void log(void* ctx, int32_t level, YokeString text) {
    self(ctx).check_log_line(level, text);
  }

  static int32_t check_cancel(void* ctx) {
    InstrumentedHost& host = self(ctx);
    ++host.cancel_calls;
    return host.cancelled ? 1 : host.real_.check_cancel(host.real_.ctx);
  }

  static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
    InstrumentedHost& host = self(ctx);
    if (host.without_services) return nullptr;
    if (std::strcmp(name, "yoke.backends/1") == 0) host.opens_backends = true;
    const YokeHeader* found = host.real_.get_service(host.real_.ctx, name, min_size);
    if (found == nullptr || std::strcmp(name, "yoke.collectives/1") != 0) return found;
    host.collectives_ = reinterpret_cast<const YokeCollectives*>(found);
    host.instrumented_collectives_ = *host.collectives_;
    host.instrumented_collectives_.all_reduce = all_reduce;
    host.instrumented_collectives_.all_gather = all_gather;
    host.instrumented_collectives_.reduce_scatter = reduce_scatter;
    host.instrumented_collectives_.broadcast = broadcast;
    host.instrumented_collectives_.send = send;
    host.instrumented_collectives_.recv = recv;
    host.instrumented_collectives_.all_to_all = all_to_all;
    host.instrumented_collectives_.native = native;
    host.instrumented_collectives_.wait = wait;
    host.instrumented_collectives_.comm = comm;
    host.instrumented_collectives_.ctx = ctx;
    return &host.instrumented_collectives_.header;
  }

  // Records which wrapper a communicator belongs to, and its axes. A later rank may get a
  // communicator at the same address, so an old entry is overwritten.
  static int32_t comm(
      void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err) {
    InstrumentedHost& host = self(ctx);
    const int32_t code = host.collectives_->comm(host.collectives_->ctx, axes, purpose, out, err);
    if (code == YOKE_OK && out != nullptr) owners().set(*out, {&host, axes});
    return code;
  }

  struct Owner {
    InstrumentedHost* host;
    uint32_t axes;
  };
  // Maps communicators and works to the wrapper of their rank.
  class Owners {
   public:
    void set(const void* handle, Owner owner) {
      const std::lock_guard lock(mutex_);
      map_[handle] = owner;
    }
    Owner get(const void* handle) {
      const std::lock_guard lock(mutex_);
      return map_.at(handle);
    }

   private:
    std::map<const void*, Owner> map_;
    std::mutex mutex_;
  };
  static Owners& owners() {
    static Owners map;
    return map;
  }

  // Counts a collective or a wait. Returns YOKE_OK, or the code of the injected failure.
  static int32_t injected_failure(InstrumentedHost& host, YokeError* err) {
    ++host.calls;
    ++host.collectives;
    if (host.fail_collective < 0 || host.fail_collective-- > 0) return YOKE_OK;
    return fill(err, YOKE_UNAVAILABLE, "the check made this collective fail");
  }

  // Issues a collective, whose larger side is `payload`, by `call`, unless it is to fail.
  template <class Call>
  static int32_t issue(
      YokeComm* c, const YokeTensor* payload, YokeWork** work, YokeError* err, const Call& call) {
    const Owner owner = owners().get(c);
    if (work != nullptr) *work = nullptr;
    if (const int32_t code = injected_failure(*owner.host, err)) return code;
    const int64_t bytes = numel(*payload) * item_size(YOKE_DTYPE_OF(payload->dtype));
    for (int axis = 0; axis < YOKE_NUM_AXES; ++axis)
      if (owner.axes & YOKE_AXIS_BIT(axis)) owner.host->axis_bytes[axis] += bytes;
    const int32_t code = call(*owner.host->collectives_);
    if (code == YOKE_OK && work != nullptr) owners().set(*work, owner);
    return code;
  }

  static int32_t all_reduce(
      YokeComm* c, const YokeTensor* t, int32_t op, YokeWork** work, YokeError* err) {
    return issue(c, t, work, err, [&](auto& real) { return real.all_reduce(c, t, op, work, err); });
  }
  static int32_t all_gather(
      YokeComm* c, const YokeTensor* out, const YokeTensor* in, YokeWork** work, YokeError* err) {
    return issue(
        c, out, work, err, [&](auto& real) { return real.all_gather(c, out, in, work, err); });
  }
  static int32_t reduce_scatter(YokeComm* c,
                                const YokeTensor* out,
                                const YokeTensor* in,
                                int32_t op,
                                YokeWork** work,
                                YokeError* err) {
    return issue(c, in, work, err, [&](auto& real) {
      return real.reduce_scatter(c, out, in, op, work, err);
    });
  }
  static int32_t broadcast(
      YokeComm* c, const YokeTensor* t, int32_t root, YokeWork** work, YokeError* err) {
    return issue(
        c, t, work, err, [&](auto& real) { return real.broadcast(c, t, root, work, err); });
  }

  static int32_t send(
      YokeComm* c, const YokeTensor* in, int32_t to, YokeWork** work, YokeError* err) {
    return issue(c, in, work, err, [&](auto& real) { return real.send(c, in, to, work, err); });
  }
  static int32_t recv(
      YokeComm* c, const YokeTensor* out, int32_t from, YokeWork** work, YokeError* err) {
    return issue(c, out, work, err, [&](auto& real) { return real.recv(c, out, from, work, err); });
  }
  static int32_t all_to_all(YokeComm* c,
                            const YokeTensor* out,
                            const int64_t* out_counts,
                            const YokeTensor* in,
                            const int64_t* in_counts,
                            YokeWork** work,
                            YokeError* err) {
    return issue(c, in, work, err, [&](auto& real) {
      return real.all_to_all(c, out, out_counts, in, in_counts, work, err);
    });
  }

  // What the backend does with the object is not seen.
  static void* native(YokeComm* c, const char* type) {
    InstrumentedHost& host = *owners().get(c).host;
    host.uses_native = true;
    return host.collectives_->native(c, type);
  }

  // The operation takes place even if its wait is to fail, because the peers need it.
  static int32_t wait(YokeWork* work, YokeError* err) {
    InstrumentedHost& host = *owners().get(work).host;
    const int32_t code = host.collectives_->wait(work, err);
    const int32_t injected = injected_failure(host, err);
    return code != YOKE_OK ? code : injected;
  }
};

InstrumentedHost::InstrumentedHost(const YokeHost& host) : real_(host), instrumented_(host) {
  instrumented_.ctx = this;
  instrumented_.log = Slots::log;
  instrumented_.check_cancel = Slots::check_cancel;
  instrumented_.get_service = Slots::get_service;
}

void InstrumentedHost::check_log_line(int32_t level, const YokeString& line) {
  const std::lock_guard lock(mutex_);
  if (std::string fault = log_line_fault(level, line); !fault.empty())
    log_fault_ = std::move(fault);
}

std::string InstrumentedHost::log_fault() const {
  const std::lock_guard lock(mutex_);
  return log_fault_;
}

}  // namespace yoke::conformance
