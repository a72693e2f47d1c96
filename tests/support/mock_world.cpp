#include "tests/support/mock_world.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/mock_element.hpp"
#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke::testing {
namespace {

using Bytes = std::vector<char>;

// One collective of one rank, from the call to its completion.
struct Operation {
  enum Kind { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kBarrier } kind;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  // elements of the larger side
  int32_t dtype = YOKE_F64;
  int32_t root = 0;
  bool done = false;
};
constexpr const char* kNames[] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"};

}  // namespace

// All ranks publish their operation and wait for one another. Then each computes its own result
// from the inputs of all, and they wait again before any rank writes its result.
struct MockWorld::Impl {
  explicit Impl(int32_t n) : ranks(n), published(n) {
    for (int32_t r = 0; r < n; ++r) {
      ranks[r].world = this;
      ranks[r].rank = r;
      fill_table(r);
    }
  }

  struct Rank;
  struct Comm {
    Rank* rank;
    std::string purpose;
    std::deque<std::shared_ptr<Operation>> pending;
  };
  struct Work {
    Comm* comm;
    std::shared_ptr<Operation> operation;
  };
  struct Rank {
    Impl* world = nullptr;
    int32_t rank = 0;
    YokeCollectives table{};
    std::deque<Comm> comms;
  };
  static Comm& of(const YokeComm* comm) {
    return *reinterpret_cast<Comm*>(const_cast<YokeComm*>(comm));
  }

  void fill_table(int32_t r) {
    YokeCollectives& t = ranks[r].table;
    t.header = YOKE_HEADER(YokeCollectives, YOKE_ID_COLLECTIVES);
    t.ctx = &ranks[r];
    t.comm = [](void* ctx, uint32_t, const char* purpose, YokeComm** out, YokeError*) -> int32_t {
      auto* rank = static_cast<Rank*>(ctx);
      *out = reinterpret_cast<YokeComm*>(&rank->comms.emplace_back(Comm{rank, purpose, {}}));
      return YOKE_OK;
    };
    t.size = [](const YokeComm* c) {
      return static_cast<int32_t>(of(c).rank->world->ranks.size());
    };
    t.rank = [](const YokeComm* c) { return of(c).rank->rank; };
    t.all_reduce =
        [](YokeComm* c, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
          return issue(c, {Operation::kAllReduce, *inout, *inout, op}, work, err);
        };
    t.all_gather = [](YokeComm* c,
                      const YokeTensor* out,
                      const YokeTensor* in,
                      YokeWork** work,
                      YokeError* err) {
      return issue(c, {Operation::kAllGather, *in, *out}, work, err);
    };
    t.reduce_scatter = [](YokeComm* c,
                          const YokeTensor* out,
                          const YokeTensor* in,
                          int32_t op,
                          YokeWork** work,
                          YokeError* err) {
      return issue(c, {Operation::kReduceScatter, *in, *out, op}, work, err);
    };
    t.broadcast =
        [](YokeComm* c, const YokeTensor* inout, int32_t root, YokeWork** work, YokeError* err) {
          return issue(c, {Operation::kBroadcast, *inout, *inout, YOKE_SUM, root}, work, err);
        };
    t.barrier = [](YokeComm* c, YokeError* err) {
      const YokeTensor none{};
      return issue(c, {Operation::kBarrier, none, none}, nullptr, err);
    };
    t.wait = [](YokeWork* w, YokeError* err) {
      return guard(err, [&] {
        const std::unique_ptr<Work> work(reinterpret_cast<Work*>(w));
        finish(*work->comm, *work->operation);
      });
    };
    t.native = [](YokeComm*, const char*) -> void* { return nullptr; };
  }

  // The arguments of a collective. An all-reduce and a broadcast have one tensor for both sides.
  struct Call {
    Operation::Kind kind;
    const YokeTensor& in;
    const YokeTensor& out;
    int32_t op = YOKE_SUM;
    int32_t root = 0;
  };

  // Starts a collective. Without `work` it also waits for the result.
  static int32_t issue(YokeComm* c, const Call& call, YokeWork** work, YokeError* err) {
    return guard(err, [&] {
      if (call.op != YOKE_SUM) throw Error(YOKE_UNIMPLEMENTED, "mock: SUM only");
      Comm& comm = of(c);
      auto operation = std::make_shared<Operation>();
      operation->kind = call.kind;
      operation->in = data<void>(call.in);
      operation->out = data<void>(call.out);
      operation->count = std::max(numel(call.in), numel(call.out));
      operation->dtype = YOKE_DTYPE_OF(call.in.dtype);
      operation->root = call.root;
      comm.pending.push_back(operation);
      if (comm.rank->rank == 0) comm.rank->world->count(comm, *operation);
      if (work != nullptr) {
        *work = reinterpret_cast<YokeWork*>(new Work{&comm, operation});
      } else {
        finish(comm, *operation);
      }
    });
  }

  void count(const Comm& comm, const Operation& o) {
    if (o.kind == Operation::kAllReduce) ++num_all_reduces;
    bytes[comm.purpose + " " + kNames[o.kind]] += o.count * item_size(o.dtype);
  }

  // The operations of a communicator run in the order in which they were issued.
  static void finish(Comm& comm, const Operation& operation) {
    while (!operation.done) {
      const std::shared_ptr<Operation> next = comm.pending.front();
      comm.pending.pop_front();
      next->done = true;  // even if it fails
      comm.rank->world->run_operation(comm.rank->rank, *next);
    }
  }

  void run_operation(int32_t rank, const Operation& mine) {
    published[rank] = &mine;
    barrier();
    for (const Operation* other : published) {
      if (other->kind != mine.kind || other->count != mine.count || other->dtype != mine.dtype)
        throw Error(YOKE_INTERNAL, "mock: the ranks do not issue the same collective");
    }
    const Bytes result = result_for(rank, mine);
    barrier();
    if (!result.empty()) std::memcpy(mine.out, result.data(), result.size());
  }

  Bytes result_for(int32_t rank, const Operation& o) const {
    const auto size = static_cast<int64_t>(ranks.size());
    const int64_t item = item_size(o.dtype);
    if (o.kind == Operation::kBarrier) return {};
    if (o.kind == Operation::kBroadcast) {
      const char* from = static_cast<const char*>(published[o.root]->in);
      return {from, from + o.count * item};
    }
    Bytes result;
    if (o.kind == Operation::kAllGather) {
      for (const Operation* other : published) {
        const char* from = static_cast<const char*>(other->in);
        result.insert(result.end(), from, from + o.count / size * item);
      }
      return result;
    }
    const bool scatter = o.kind == Operation::kReduceScatter;
    const int64_t n = scatter ? o.count / size : o.count, begin = scatter ? rank * n : 0;
    result.resize(n * item);
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (const Operation* other : published) sum += get_element(other->in, o.dtype, begin + i);
      put_element(result.data(), o.dtype, i, sum);
    }
    return result;
  }

  // Waits until all ranks have called it. Throws Error(UNAVAILABLE) if a rank is lost.
  void barrier() {
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

  void lose() {
    std::lock_guard lock(mutex);
    lost = true;
    changed.notify_all();
  }

  std::vector<Rank> ranks;
  std::vector<const Operation*> published;
  std::mutex mutex;
  std::condition_variable changed;
  size_t arrived = 0;
  uint64_t generation = 0;
  bool lost = false;
  int64_t num_all_reduces = 0;
  std::map<std::string, int64_t> bytes;
};

MockWorld::MockWorld(int32_t world_size) : impl_(std::make_unique<Impl>(world_size)) {}
MockWorld::~MockWorld() = default;
const YokeCollectives* MockWorld::collectives(int32_t rank) {
  return &impl_->ranks[rank].table;
}
int64_t MockWorld::all_reduces() const {
  return impl_->num_all_reduces;
}
const std::map<std::string, int64_t>& MockWorld::bytes() const {
  return impl_->bytes;
}

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

}  // namespace yoke::testing
