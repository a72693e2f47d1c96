// The inner backend gets handles of this file instead of communicators and works of the host: the
// functions of YokeCollectives have no ctx, so a handle must lead to its rank.
#include "plugins/validate/collectives.hpp"

#include <algorithm>
#include <cstring>

#include "plugins/validate/tensors.hpp"
#include "yoke/plan.h"
#include "yoke/tensor.hpp"
#include "yoke/text.hpp"

namespace yoke::validate {
namespace {

// The number of works that are kept after their wait.
constexpr size_t kKeptWorks = 1024;

// Returns "dp_replicate+dp_shard", or "all".
std::string axes_text(uint32_t axes) {
  if (axes == YOKE_ALL_AXES) return "all";
  std::string text;
  for (int axis = 0; axis < YOKE_NUM_AXES; ++axis) {
    if ((axes & YOKE_AXIS_BIT(axis)) != 0)
      text += concat(text.empty() ? "" : "+", yoke_axis_name(axis));
  }
  return text;
}

}  // namespace

struct WatchedCollectives::Comm {
  WatchedCollectives* owner;
  YokeComm* real;
  Issued issued;
};

struct WatchedCollectives::Work {
  WatchedCollectives* owner;
  YokeWork* real;
  std::string name;
  bool waited = false;
};

// The arguments of an operation. What it does not have is NULL or -1.
struct WatchedCollectives::Operation {
  // How the sizes of `out` and `in` are related. kParts: the parts may differ from rank to rank.
  enum Kind { kSame, kGather, kScatter, kParts, kNoTensor };
  const char* name;
  Comm* comm;
  const YokeTensor* out = nullptr;
  const YokeTensor* in = nullptr;
  int32_t reduction = -1;
  int32_t peer = -1;
  Kind kind = kSame;
  bool collective = true;
};

struct WatchedCollectives::Slots {
  static Comm* of(const YokeComm* handle) {
    return reinterpret_cast<Comm*>(const_cast<YokeComm*>(handle));
  }
  static const YokeCollectives& real(const YokeComm* comm) { return of(comm)->owner->real_; }

  // Runs an operation of a communicator. issue(comm, work): the call of the host.
  template <class Issue>
  static int32_t run(
      YokeComm* comm, Operation operation, YokeWork** work, YokeError* err, Issue&& issue) {
    if (work != nullptr) *work = nullptr;
    if (comm == nullptr)
      return fill(err, YOKE_INVALID_ARGUMENT, concat(operation.name, ": comm is NULL"));
    operation.comm = of(comm);
    return of(comm)->owner->run(
        operation, work, err, [&](YokeWork** started) { return issue(of(comm)->real, started); });
  }

  static int32_t comm(
      void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err) {
    return static_cast<WatchedCollectives*>(ctx)->make_comm(axes, purpose, out, err);
  }
  static int32_t size(const YokeComm* c) { return real(c).size(of(c)->real); }
  static int32_t rank(const YokeComm* c) { return real(c).rank(of(c)->real); }
  static void* native(YokeComm* c, const char* type) {
    return c == nullptr ? nullptr : real(c).native(of(c)->real, type);
  }

  static int32_t all_reduce(
      YokeComm* c, const YokeTensor* t, int32_t op, YokeWork** work, YokeError* err) {
    const Operation o{.name = "all_reduce", .comm = nullptr, .out = t, .in = t, .reduction = op};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).all_reduce(r, t, op, w, err);
    });
  }
  static int32_t all_gather(
      YokeComm* c, const YokeTensor* out, const YokeTensor* in, YokeWork** work, YokeError* err) {
    const Operation o{
        .name = "all_gather", .comm = nullptr, .out = out, .in = in, .kind = Operation::kGather};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).all_gather(r, out, in, w, err);
    });
  }
  static int32_t reduce_scatter(YokeComm* c,
                                const YokeTensor* out,
                                const YokeTensor* in,
                                int32_t op,
                                YokeWork** work,
                                YokeError* err) {
    const Operation o{.name = "reduce_scatter",
                      .comm = nullptr,
                      .out = out,
                      .in = in,
                      .reduction = op,
                      .kind = Operation::kScatter};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).reduce_scatter(r, out, in, op, w, err);
    });
  }
  static int32_t broadcast(
      YokeComm* c, const YokeTensor* t, int32_t root, YokeWork** work, YokeError* err) {
    const Operation o{.name = "broadcast", .comm = nullptr, .out = t, .in = t, .peer = root};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).broadcast(r, t, root, w, err);
    });
  }
  static int32_t barrier(YokeComm* c, YokeError* err) {
    const Operation o{.name = "barrier", .comm = nullptr, .kind = Operation::kNoTensor};
    return run(
        c, o, nullptr, err, [&](YokeComm* r, YokeWork**) { return real(c).barrier(r, err); });
  }
  static int32_t send(
      YokeComm* c, const YokeTensor* in, int32_t to, YokeWork** work, YokeError* err) {
    const Operation o{
        .name = "send", .comm = nullptr, .out = in, .in = in, .peer = to, .collective = false};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).send(r, in, to, w, err);
    });
  }
  static int32_t recv(
      YokeComm* c, const YokeTensor* out, int32_t from, YokeWork** work, YokeError* err) {
    const Operation o{
        .name = "recv", .comm = nullptr, .out = out, .in = out, .peer = from, .collective = false};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).recv(r, out, from, w, err);
    });
  }
  static int32_t all_to_all(YokeComm* c,
                            const YokeTensor* out,
                            const int64_t* out_counts,
                            const YokeTensor* in,
                            const int64_t* in_counts,
                            YokeWork** work,
                            YokeError* err) {
    const Operation o{
        .name = "all_to_all", .comm = nullptr, .out = out, .in = in, .kind = Operation::kParts};
    return run(c, o, work, err, [&](YokeComm* r, YokeWork** w) {
      return real(c).all_to_all(r, out, out_counts, in, in_counts, w, err);
    });
  }
  static int32_t wait(YokeWork* work, YokeError* err) {
    if (work == nullptr) return fill(err, YOKE_INVALID_ARGUMENT, "wait: work is NULL");
    auto* mine = reinterpret_cast<Work*>(work);
    return mine->owner->wait(mine, err);
  }
};

WatchedCollectives::WatchedCollectives(const YokeHost& host,
                                       uint32_t axes,
                                       const YokeCollectives& real,
                                       Monitor& monitor)
    : host_(host), axes_(axes), real_(real), monitor_(monitor), table_(copied(real)) {
  table_.ctx = this;
  table_.comm = Slots::comm;
  table_.size = Slots::size;
  table_.rank = Slots::rank;
  table_.all_reduce = Slots::all_reduce;
  table_.all_gather = Slots::all_gather;
  table_.reduce_scatter = Slots::reduce_scatter;
  table_.broadcast = Slots::broadcast;
  table_.barrier = Slots::barrier;
  table_.wait = Slots::wait;
  table_.native = Slots::native;
  table_.send = Slots::send;
  table_.recv = Slots::recv;
  table_.all_to_all = Slots::all_to_all;
}

WatchedCollectives::~WatchedCollectives() = default;

int32_t WatchedCollectives::require_collective(const char* name, YokeError* err) {
  if (monitor_.current().collective) return YOKE_OK;
  return monitor_.violated(Rule::kOnlyInCollectiveFunctions,
                           name,
                           "the backend communicates outside of a collective function",
                           err);
}

int32_t WatchedCollectives::make_comm(uint32_t axes,
                                      const char* purpose,
                                      YokeComm** out,
                                      YokeError* err) {
  Stopwatch watch(monitor_);
  if (out == nullptr) return fill(err, YOKE_INVALID_ARGUMENT, "comm: out is NULL");
  *out = nullptr;
  if (const int32_t code = require_collective("comm", err)) return code;
  YokeComm* real = nullptr;
  const int32_t code =
      watch.forward([&] { return real_.comm(real_.ctx, axes, purpose, &real, err); });
  Fields fields;
  fields.add("axes", axes_text(axes)).add("purpose", purpose == nullptr ? "" : purpose);
  monitor_.trace_call("backend", "comm", code, watch, fields);
  if (code != YOKE_OK) {
    monitor_.note_failure("comm", code);
    return code;
  }
  const std::lock_guard lock(mutex_);
  auto known = std::find_if(
      comms_.begin(), comms_.end(), [&](const auto& comm) { return comm->real == real; });
  if (known == comms_.end()) {
    comms_.push_back(std::make_unique<Comm>(Comm{this, real, {axes & axes_, purpose, 0, 0}}));
    known = comms_.end() - 1;
  }
  *out = reinterpret_cast<YokeComm*>(known->get());
  return YOKE_OK;
}

// ---- Operations ----

template <class Issue>
int32_t WatchedCollectives::run(const Operation& operation,
                                YokeWork** work,
                                YokeError* err,
                                Issue&& issue) {
  Stopwatch watch(monitor_);
  if (const int32_t code = examine(operation, err)) return code;
  if (operation.collective) count(operation);
  YokeWork* started = nullptr;
  const int32_t code = watch.forward([&] { return issue(work == nullptr ? nullptr : &started); });
  if (code != YOKE_OK) monitor_.note_failure(operation.name, code);
  if (monitor_.trace().on()) {
    Fields fields;
    fields.add("axes", axes_text(operation.comm->issued.axes));
    fields.add("purpose", operation.comm->issued.purpose);
    fields.add(operation.kind == Operation::kScatter ? operation.in : operation.out);
    if (operation.reduction >= 0) fields.add("reduction", int64_t{operation.reduction});
    if (operation.peer >= 0) fields.add("peer", int64_t{operation.peer});
    fields.add("waits", int64_t{work == nullptr});
    monitor_.trace_call("backend", operation.name, code, watch, fields);
  }
  if (code == YOKE_OK && work != nullptr) {
    auto* mine = new Work{this, started, operation.name};
    const std::lock_guard lock(mutex_);
    works_.insert(mine);
    *work = reinterpret_cast<YokeWork*>(mine);
  }
  return code;
}

int32_t WatchedCollectives::examine(const Operation& operation, YokeError* err) {
  if (const int32_t code = require_collective(operation.name, err)) return code;
  const std::string fault = fault_of(operation);
  // The host refuses such arguments as well, but its error does not name the rule.
  return fault.empty() ? YOKE_OK
                       : monitor_.violated(Rule::kOperationArguments, operation.name, fault, err);
}

std::string WatchedCollectives::fault_of(const Operation& o) const {
  const int32_t size = real_.size(o.comm->real), rank = real_.rank(o.comm->real);
  const bool message = !o.collective;
  if (o.peer >= size || ((message || std::strcmp(o.name, "broadcast") == 0) && o.peer < 0) ||
      (message && o.peer == rank))
    return concat(
        "the other rank is ", o.peer, ", in a communicator of ", size, ", by rank ", rank);
  if (o.kind == Operation::kNoTensor) return "";
  for (const auto& [what, tensor] : {std::pair("out", o.out), std::pair("in", o.in)})
    if (std::string fault = tensor_fault(what, tensor, host_.device); !fault.empty()) return fault;
  const int32_t dtype = YOKE_DTYPE_OF(o.in->dtype);
  const int64_t out = numel(*o.out), in = numel(*o.in);
  const bool fits = o.kind == Operation::kGather    ? out == in * size
                    : o.kind == Operation::kScatter ? in == out * size
                                                    : true;
  if (YOKE_DTYPE_OF(o.out->dtype) != dtype || !fits) {
    return concat(
               "out is ", out, " x ", dtype_name(YOKE_DTYPE_OF(o.out->dtype)), ", in ", in, " x ") +
           concat(dtype_name(dtype), ", in a communicator of ", size);
  }
  if (o.reduction > YOKE_MIN || (o.reduction == YOKE_AVG && !is_float(dtype)))
    return concat("the reduction is ", o.reduction, " of ", dtype_name(dtype));
  return "";
}

void WatchedCollectives::count(const Operation& operation) {
  const YokeTensor* larger = operation.kind == Operation::kScatter ? operation.in : operation.out;
  uint64_t hash = 0;
  for (const char* c = operation.name; *c != '\0'; ++c)
    hash = mixed(hash, static_cast<uint64_t>(*c));
  if (larger != nullptr) hash = mixed(hash, static_cast<uint64_t>(YOKE_DTYPE_OF(larger->dtype)));
  if (larger != nullptr && operation.kind != Operation::kParts)
    hash = mixed(hash, static_cast<uint64_t>(numel(*larger)));
  hash = mixed(hash, static_cast<uint64_t>(operation.reduction + 1));
  hash = mixed(hash, static_cast<uint64_t>(operation.peer + 1));
  const std::lock_guard lock(mutex_);
  Issued& issued = operation.comm->issued;
  ++issued.count;
  issued.hash = mixed(issued.hash, hash);
}

int32_t WatchedCollectives::wait(Work* work, YokeError* err) {
  Stopwatch watch(monitor_);
  if (work->waited)
    return monitor_.violated(
        Rule::kWorksAreWaitedFor, "wait", "a work of " + work->name + " is waited for again", err);
  const int32_t code = watch.forward([&] { return real_.wait(work->real, err); });
  if (code != YOKE_OK) monitor_.note_failure("wait", code);
  monitor_.trace_call("backend", "wait", code, watch, Fields().add("for", work->name));
  const std::lock_guard lock(mutex_);
  work->waited = true;
  works_.erase(work);
  waited_.emplace_back(work);
  if (waited_.size() > kKeptWorks) waited_.pop_front();
  return code;
}

void WatchedCollectives::check_works() {
  std::set<Work*> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(works_);
  }
  for (Work* work : left) {
    const std::unique_ptr<Work> owned(work);
    monitor_.violated(
        Rule::kWorksAreWaitedFor, "destroy", "nobody has waited for a work of " + work->name);
  }
}

std::vector<WatchedCollectives::Issued> WatchedCollectives::take_issued() {
  const std::lock_guard lock(mutex_);
  std::vector<Issued> list;
  for (const auto& comm : comms_) {
    list.push_back(comm->issued);
    comm->issued.count = 0;
    comm->issued.hash = 0;
  }
  return list;
}

}  // namespace yoke::validate
