// Every function here is called by a backend through the C ABI. None may let an exception escape,
// so each body runs inside guard(), which turns an Error into a code and a text. Arguments are
// checked before they are used, because a backend may be written by someone else: a NULL tensor or
// a strided one must cause an error message and not a crash.
//
// For each set of axes, inner backends get a separate host. That host has its own rank and world
// size, but shares the world's communicators, so that a collective of an inner backend is ordered
// and checked together with all others.
#include "core/backend/services.hpp"

#include <cstring>
#include <utility>
#include <vector>

#include "core/backend/counted_graph.hpp"
#include "yoke/backend.hpp"
#include "yoke/text.hpp"
#include "yoke/torch.hpp"

struct YokeWork {
  std::unique_ptr<yoke::CommWork> work;
};

namespace yoke {
namespace {

template <class T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) throw Error(YOKE_INVALID_ARGUMENT, std::string(what) + " is NULL");
  return *pointer;
}

bool is(const char* text, const char* name) {
  return text != nullptr && std::strcmp(text, name) == 0;
}

Communicator& communicator(YokeComm* comm) {
  return *required(comm, "comm").comm;
}

// Returns the backend's memory as a tensor, without a copy. Throws Error(INVALID_ARGUMENT), with a
// text that starts with `what`, if it is not a compact row-major tensor.
at::Tensor borrowed(const YokeTensor* tensor, const char* what) {
  const YokeTensor& t = required(tensor, what);
  // borrow() trusts the struct, so the fields that it relies on are checked first.
  if (t.ndim < 0 || (t.ndim > 0 && t.shape == nullptr)) {
    throw Error(YOKE_INVALID_ARGUMENT,
                concat(what, ": ndim is ", t.ndim, t.ndim > 0 ? " and shape is NULL" : ""));
  }
  if (t.dtype.lanes != 1) {
    throw Error(YOKE_INVALID_ARGUMENT, concat(what, ": lanes is ", t.dtype.lanes, "; allowed: 1"));
  }
  at::Tensor borrowed = borrow(t);
  if (!borrowed.is_contiguous()) {
    throw Error(YOKE_INVALID_ARGUMENT,
                std::string(what) +
                    ": the tensor is not compact row-major; copy it first, or "
                    "pass strides = NULL for compact memory");
  }
  return borrowed;
}

// Passes the started work to the backend. If `work` is NULL, waits for it instead.
void return_work(std::unique_ptr<CommWork> started, YokeWork** work) {
  if (work == nullptr) return started->wait();
  *work = new YokeWork{std::move(started)};
}

}  // namespace

// The C functions of the tables. `ctx` is the HostServices.
struct ServiceSlots {
  static HostServices& self(void* ctx) { return *static_cast<HostServices*>(ctx); }

  static void log(void* ctx, int32_t level, YokeString text) {
    // This function cannot return an error, so if the sink throws, only this line is lost.
    guard(nullptr, [&] { self(ctx).log_(level, std::string(view(text))); });
  }

  static int32_t check_cancel(void* ctx) {
    const auto* cancel = self(ctx).cancel_;
    return cancel != nullptr && cancel->load(std::memory_order_relaxed) ? 1 : 0;
  }

  static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
    const HostServices& host = self(ctx);
    const YokeHeader* table = nullptr;
    if (is(name, "yoke.collectives/1")) table = &host.collectives_.header;
    if (is(name, "yoke.events/1") && host.events_ != nullptr) table = &host.events_table_.header;
    if (is(name, "yoke.backends/1") && host.inner_ != nullptr) table = &host.backends_.header;
    if (is(name, "yoke.torch_graphs/1") && host.world_.device() != nullptr)
      table = &host.graphs_.header;
    if (is(name, "yoke.torch_kernels/1") && host.world_.device() != nullptr)
      table = &host.kernels_.header;
    // A backend that was built with a newer header may expect a longer table than this host has. It
    // must get NULL: otherwise it would call whatever follows our table in memory.
    return table != nullptr && table->struct_size >= min_size ? table : nullptr;
  }

  static int32_t open(
      void* ctx, const char* name, uint32_t axes, YokeInnerBackend* out, YokeError* err) {
    return guard(err, [&] {
      HostServices& host = self(ctx);
      const auto& inner = host.inner_->open(&required(name, "open: name"));
      write_result(&required(out, "open: out"), InnerBackends::contract(inner, host.along(axes)));
    });
  }

  static int32_t comm(
      void* ctx, uint32_t axes, const char* purpose, YokeComm** out, YokeError* err) {
    return guard(err, [&] {
      YokeComm*& result = required(out, "comm: out");
      result = nullptr;
      HostServices& host = self(ctx);
      // An inner backend only reaches ranks of its own world, whatever axes it requests.
      Communicator& c = host.world_.comm(axes & host.axes_, &required(purpose, "comm: purpose"));
      // The nodes of a std::map do not move, so handles stay valid while others are added.
      result = &host.comms_.try_emplace(&c, YokeComm{&c}).first->second;
    });
  }

  static int32_t size(const YokeComm* comm) { return comm->comm->size(); }
  static int32_t rank(const YokeComm* comm) { return comm->comm->rank(); }

  // Calls start(), which issues the collective. *work stays NULL if that fails.
  template <class F>
  static int32_t issue(YokeWork** work, YokeError* err, F&& start) {
    if (work != nullptr) *work = nullptr;
    return guard(err, [&] { return_work(start(), work); });
  }

  static int32_t all_reduce(
      YokeComm* comm, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
    return issue(work, err, [&] {
      return communicator(comm).all_reduce(borrowed(inout, "all_reduce: inout"), op);
    });
  }

  static int32_t all_gather(YokeComm* comm,
                            const YokeTensor* out,
                            const YokeTensor* in,
                            YokeWork** work,
                            YokeError* err) {
    return issue(work, err, [&] {
      const at::Tensor whole = borrowed(out, "all_gather: out");
      return communicator(comm).all_gather(whole, borrowed(in, "all_gather: in"));
    });
  }

  static int32_t reduce_scatter(YokeComm* comm,
                                const YokeTensor* out,
                                const YokeTensor* in,
                                int32_t op,
                                YokeWork** work,
                                YokeError* err) {
    return issue(work, err, [&] {
      const at::Tensor part = borrowed(out, "reduce_scatter: out");
      return communicator(comm).reduce_scatter(part, borrowed(in, "reduce_scatter: in"), op);
    });
  }

  static int32_t broadcast(
      YokeComm* comm, const YokeTensor* inout, int32_t root, YokeWork** work, YokeError* err) {
    return issue(work, err, [&] {
      return communicator(comm).broadcast(borrowed(inout, "broadcast: inout"), root);
    });
  }

  static int32_t send(
      YokeComm* comm, const YokeTensor* in, int32_t to, YokeWork** work, YokeError* err) {
    return issue(work, err, [&] { return communicator(comm).send(borrowed(in, "send: in"), to); });
  }

  static int32_t recv(
      YokeComm* comm, const YokeTensor* out, int32_t from, YokeWork** work, YokeError* err) {
    return issue(
        work, err, [&] { return communicator(comm).recv(borrowed(out, "recv: out"), from); });
  }

  static int32_t all_to_all(YokeComm* comm,
                            const YokeTensor* out,
                            const int64_t* out_counts,
                            const YokeTensor* in,
                            const int64_t* in_counts,
                            YokeWork** work,
                            YokeError* err) {
    return issue(work, err, [&] {
      Communicator& ranks = communicator(comm);
      if ((out_counts == nullptr) != (in_counts == nullptr)) {
        throw Error(YOKE_INVALID_ARGUMENT,
                    "all_to_all: one of out_counts and in_counts is NULL; allowed: both or none");
      }
      const auto counts = [&](const int64_t* given) {
        return given == nullptr ? std::vector<int64_t>()
                                : std::vector<int64_t>(given, given + ranks.size());
      };
      const at::Tensor received = borrowed(out, "all_to_all: out");
      return ranks.all_to_all(
          received, counts(out_counts), borrowed(in, "all_to_all: in"), counts(in_counts));
    });
  }

  static int64_t now(void*) { return BackendEvents::now(); }

  static int32_t span(void* ctx, YokeString name, int64_t begin, int64_t end, YokeError* err) {
    return guard(err, [&] { self(ctx).events_->span(view(name), begin, end); });
  }

  static int32_t metric(void* ctx, YokeString name, double value, YokeError* err) {
    return guard(err, [&] { self(ctx).events_->metric(view(name), value); });
  }

  static int32_t barrier(YokeComm* comm, YokeError* err) {
    return guard(err, [&] { communicator(comm).barrier(); });
  }

  // Waits for the work and frees it, even if waiting fails.
  static int32_t wait(YokeWork* work, YokeError* err) {
    return guard(err, [&] {
      const std::unique_ptr<YokeWork> owned(&required(work, "wait: work"));
      owned->work->wait();
    });
  }

  static std::unique_ptr<DeviceGraph> make_graph(void* ctx) {
    World& world = self(ctx).world_;
    return std::make_unique<CountedGraph>(world.device()->runtime().make_graph(), world);
  }

  static void adamw(void* ctx, const AdamWTensors& tensors) {
    self(ctx).world_.device()->runtime().adamw(tensors);
  }

  // Returns the c10d::ProcessGroup for backends that use LibTorch; NULL if there is none.
  static void* native(YokeComm* comm, const char* type) {
    if (comm == nullptr || !is(type, "c10d::ProcessGroup")) return nullptr;
    void* group = nullptr;
    guard(nullptr, [&] { group = comm->comm->process_group(); });
    return group;
  }
};

HostServices::HostServices(World& world,
                           LogSink log,
                           const std::atomic<bool>* cancel,
                           InnerBackends* inner,
                           BackendEvents* events)
    : world_(world), log_(std::move(log)), cancel_(cancel), inner_(inner), events_(events) {
  fill_tables();
}

HostServices::HostServices(const HostServices& whole, uint32_t axes)
    : world_(whole.world_),
      log_(whole.log_),
      cancel_(whole.cancel_),
      inner_(whole.inner_),
      events_(whole.events_),
      axes_(axes) {
  // The functions are those of the whole world's host; only rank and size differ.
  fill_tables();
  const Communicator& part = world_.comm(axes, "inner world");
  host_.rank = part.rank();
  host_.world_size = part.size();
}

// An inner backend may be opened for all axes of this host. It then gets this host itself, so that
// a backend which only wraps another one costs nothing.
const YokeHost* HostServices::along(uint32_t axes) {
  const uint32_t both = axes & axes_;
  if (both == axes_) return &host_;
  std::unique_ptr<HostServices>& part = parts_[both];
  if (!part) part.reset(new HostServices(*this, both));
  return &part->host_;
}

void HostServices::fill_tables() {
  using S = ServiceSlots;
  const RankDevice* device = world_.device();
  host_ = {YOKE_HEADER(YokeHost, YOKE_ID_HOST),
           this,
           world_.rank(),
           world_.size(),
           device == nullptr ? YokeDevice{YOKE_DEVICE_CPU, 0} : device->contract_device(),
           S::log,
           S::check_cancel,
           S::get_service,
           device == nullptr ? nullptr : device->stream()};
  collectives_ = {YOKE_HEADER(YokeCollectives, YOKE_ID_COLLECTIVES),
                  this,
                  S::comm,
                  S::size,
                  S::rank,
                  S::all_reduce,
                  S::all_gather,
                  S::reduce_scatter,
                  S::broadcast,
                  S::barrier,
                  S::wait,
                  S::native,
                  S::send,
                  S::recv,
                  S::all_to_all};
  events_table_ = {YOKE_HEADER(YokeEvents, YOKE_ID_EVENTS), this, S::now, S::span, S::metric};
  backends_ = {YOKE_HEADER(YokeBackends, YOKE_ID_BACKENDS), this, S::open};
  kernels_ = {YOKE_HEADER(TorchKernels, 0), this, S::adamw};
  graphs_ = {YOKE_HEADER(TorchGraphs, 0),
             this,
             S::make_graph,
             std::chrono::duration<double>(world_.timeout()).count()};
}

}  // namespace yoke
