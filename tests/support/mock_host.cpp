#include "tests/support/mock_host.hpp"

#include <dlfcn.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "yoke/tensor.hpp"

namespace yoke::testing {

// All ranks write their pointer, meet, every rank adds up all inputs in rank order, and meets again.
struct MockWorld::Impl {
  explicit Impl(int32_t n) : ranks(n), inputs(n) {
    for (int32_t r = 0; r < n; ++r) {
      ranks[r] = {this, r};
      fill_table(r);
    }
  }

  struct Rank {
    Impl* world = nullptr;
    int32_t rank = 0;
    YokeCollectives table{};
  };
  static Rank& of(const YokeComm* comm) { return *reinterpret_cast<Rank*>(const_cast<YokeComm*>(comm)); }

  void fill_table(int32_t r) {
    YokeCollectives& t = ranks[r].table;
    t.header = YOKE_HEADER(YokeCollectives, YOKE_ID_COLLECTIVES);
    t.ctx = &ranks[r];
    t.comm = [](void* ctx, uint32_t, const char*, YokeComm** out, YokeError*) -> int32_t {
      *out = static_cast<YokeComm*>(ctx);
      return YOKE_OK;
    };
    t.size = [](const YokeComm* c) { return static_cast<int32_t>(of(c).world->ranks.size()); };
    t.rank = [](const YokeComm* c) { return of(c).rank; };
    t.all_reduce = [](YokeComm* c, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
      return guard(err, [&] {
        if (op != YOKE_SUM || work != nullptr) throw Error(YOKE_UNIMPLEMENTED, "mock: blocking SUM only");
        of(c).world->all_reduce(of(c).rank, *inout);
      });
    };
    t.all_gather = [](YokeComm*, const YokeTensor*, const YokeTensor*, YokeWork**, YokeError* err) {
      return fill(err, YOKE_UNIMPLEMENTED, "mock: all_gather");
    };
    t.reduce_scatter = [](YokeComm*, const YokeTensor*, const YokeTensor*, int32_t, YokeWork**, YokeError* err) {
      return fill(err, YOKE_UNIMPLEMENTED, "mock: reduce_scatter");
    };
    t.broadcast = [](YokeComm*, const YokeTensor*, int32_t, YokeWork**, YokeError* err) {
      return fill(err, YOKE_UNIMPLEMENTED, "mock: broadcast");
    };
    t.barrier = [](YokeComm* c, YokeError* err) { return guard(err, [&] { of(c).world->meet(); }); };
    t.wait = [](YokeWork*, YokeError* err) { return fill(err, YOKE_UNIMPLEMENTED, "mock: wait"); };
    t.native = [](YokeComm*, const char*) -> void* { return nullptr; };
  }

  void meet() {
    std::unique_lock lock(mutex);
    const uint64_t now = generation;
    if (++arrived == ranks.size()) {
      arrived = 0;
      ++generation;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return generation != now || lost; });
    if (lost) throw Error(YOKE_UNAVAILABLE, "mock: a rank is lost");
  }

  template <class T>
  std::vector<char> sum(int64_t n) const {
    std::vector<char> bytes(n * sizeof(T));
    for (int64_t i = 0; i < n; ++i) {
      T s = 0;
      for (const void* in : inputs) s += static_cast<const T*>(in)[i];
      std::memcpy(&bytes[i * sizeof(T)], &s, sizeof(T));
    }
    return bytes;
  }

  void all_reduce(int32_t rank, const YokeTensor& t) {
    inputs[rank] = data<void>(t);
    if (rank == 0) ++num_all_reduces;
    meet();
    const auto bytes = YOKE_DTYPE_OF(t.dtype) == YOKE_F64 ? sum<double>(numel(t)) : sum<float>(numel(t));
    meet();
    std::memcpy(data<void>(t), bytes.data(), bytes.size());
  }

  void lose() {
    std::lock_guard lock(mutex);
    lost = true;
    changed.notify_all();
  }

  std::vector<Rank> ranks;
  std::vector<const void*> inputs;
  std::mutex mutex;
  std::condition_variable changed;
  size_t arrived = 0;
  uint64_t generation = 0;
  bool lost = false;
  int64_t num_all_reduces = 0;
};

MockWorld::MockWorld(int32_t world_size) : impl_(std::make_unique<Impl>(world_size)) {}
MockWorld::~MockWorld() = default;
const YokeCollectives* MockWorld::collectives(int32_t rank) { return &impl_->ranks[rank].table; }
int64_t MockWorld::all_reduces() const { return impl_->num_all_reduces; }

void MockWorld::run(const std::function<void(int32_t)>& body) {
  std::vector<std::exception_ptr> failures(impl_->ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < failures.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(static_cast<int32_t>(r));
      } catch (...) {
        failures[r] = std::current_exception();
        impl_->lose();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& f : failures) {
    if (f) std::rethrow_exception(f);
  }
}

MockHost::MockHost(MockWorld* world, int32_t rank, int32_t world_size) : world_(world) {
  host.header = YOKE_HEADER(YokeHost, YOKE_ID_HOST);
  host.ctx = this;
  host.rank = rank;
  host.world_size = world_size;
  host.device = {YOKE_DEVICE_CPU, 0};
  host.log = [](void* ctx, int32_t, YokeString text) { static_cast<MockHost*>(ctx)->log.emplace_back(view(text)); };
  host.check_cancel = [](void* ctx) -> int32_t {
    int& left = static_cast<MockHost*>(ctx)->cancel_after;
    if (left > 0) --left;
    else if (left == 0) return 1;
    return 0;
  };
  host.get_service = [](void* ctx, const char* name, uint64_t min_size) -> const YokeHeader* {
    auto* self = static_cast<MockHost*>(ctx);
    if (self->world_ == nullptr || std::strcmp(name, "yoke.collectives/1") != 0) return nullptr;
    if (min_size > sizeof(YokeCollectives)) return nullptr;
    return &self->world_->collectives(self->host.rank)->header;
  };
}

MockPlan::MockPlan() {
  optimizer.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  optimizer.kind = YOKE_ADAMW;
  optimizer.beta1 = 0.9;
  optimizer.beta2 = 0.95;
  optimizer.eps = 1e-8;
  optimizer.weight_decay = 0.1;
  optimizer.clip = 1.0;
  plan.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  plan.optimizer = &optimizer;
  plan.world_size = 1;
  plan.global_batch = 8;
  plan.param_dtype = YOKE_F64;
  plan.reduce_dtype = YOKE_F64;
}

int32_t MockPlan::ask(const ParallelBackend& backend, const YokeModelSummary& model, YokeError* err) {
  refusals.clear();
  YokePlanArgs args{};
  args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  args.model = &model;
  args.refuse = [](void* ctx, const YokeRefusal* r) {
    static_cast<MockPlan*>(ctx)->refusals.push_back({std::string(view(r->key)), std::string(view(r->given)),
                                                     std::string(view(r->allowed)), std::string(view(r->hint)),
                                                     r->note != 0});
  };
  args.refuse_ctx = this;
  return backend.plan(&args, &plan, err);
}

const ParallelBackend& load_backend(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw Error(YOKE_NOT_FOUND, dlerror());
  auto* entry = reinterpret_cast<YokeEntry>(dlsym(library, YOKE_ENTRY_SYMBOL));
  if (entry == nullptr) throw Error(YOKE_NOT_FOUND, path + " has no " YOKE_ENTRY_SYMBOL);
  YokeError err = make_error();
  const ParallelBackend* backend = entry(YOKE_ABI_MINOR, &err);
  if (backend == nullptr) throw Error(err.code, err.text);
  return *backend;
}

Session::Session(const ParallelBackend& b, MockPlan& plan, MockHost& host, const YokeModel& model) : backend(b) {
  YokeError err = make_error();
  check(plan.ask(backend, *model.summary, &err), err);
  YokeInitArgs args{};
  args.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  args.plan = &plan.plan;
  args.host = &host.host;
  check(backend.init(&args, &context, &err), err);
  wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  const int32_t code = backend.wrap_model(context, &model, &wrapped, &err);
  if (code != YOKE_OK) backend.destroy(&context);  // no destructor runs for a half-made session
  check(code, err);
}

Session::~Session() {
  backend.destroy_model(&wrapped.model);
  backend.destroy(&context);
}

YokeStepResult Session::step(const YokeBatch& batch, int64_t step, double lr, uint32_t flags) {
  const YokeStepArgs args = {YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch, step, lr, flags, 0};
  YokeStepResult out{};
  out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  YokeError err = make_error();
  check(backend.step(wrapped.model, &args, &out, &err), err);
  return out;
}

void Session::checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit) {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    return guard(err, [&] { (*static_cast<const std::function<void(const YokePiece&)>*>(ctx))(*piece); });
  };
  args.visit_ctx = const_cast<std::function<void(const YokePiece&)>*>(&visit);
  YokeError err = make_error();
  check(backend.checkpoint(wrapped.model, &args, &err), err);
}

std::vector<SavedPiece> save_state(Session& session) {
  std::vector<SavedPiece> pieces;
  session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& p) {
    const auto* first = data<const char>(*p.view);
    pieces.push_back({std::string(view(p.name)) + "/" + std::string(view(p.kind)),
                      {p.shape, p.shape + p.ndim},
                      p.dtype,
                      p.begin,
                      p.count,
                      p.replica,
                      {first, first + p.count * item_size(p.dtype)}});
  });
  return pieces;
}

void load_state(Session& session, const std::vector<SavedPiece>& pieces) {
  size_t next = 0;
  session.checkpoint(YOKE_CHECKPOINT_LOAD, [&](const YokePiece& p) {
    const SavedPiece& saved = pieces.at(next++);
    if (saved.key != std::string(view(p.name)) + "/" + std::string(view(p.kind)) || saved.count != p.count) {
      throw Error(YOKE_NOT_FOUND, "another piece was saved here: " + saved.key);
    }
    std::memcpy(data<char>(*p.view), saved.bytes.data(), saved.bytes.size());
  });
}

}  // namespace yoke::testing
