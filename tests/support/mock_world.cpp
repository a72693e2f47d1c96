#include "tests/support/mock_world.hpp"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "yoke/error.hpp"
#include "yoke/tensor.hpp"

namespace yoke::testing {

// All ranks write their pointer, meet, every rank adds up all inputs in rank order, and meets
// again.
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
  static Rank& of(const YokeComm* comm) {
    return *reinterpret_cast<Rank*>(const_cast<YokeComm*>(comm));
  }

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
    t.all_reduce =
        [](YokeComm* c, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
          return guard(err, [&] {
            if (op != YOKE_SUM || work != nullptr)
              throw Error(YOKE_UNIMPLEMENTED, "mock: blocking SUM only");
            of(c).world->all_reduce(of(c).rank, *inout);
          });
        };
    t.all_gather = [](YokeComm*, const YokeTensor*, const YokeTensor*, YokeWork**, YokeError* err) {
      return fill(err, YOKE_UNIMPLEMENTED, "mock: all_gather");
    };
    t.reduce_scatter =
        [](YokeComm*, const YokeTensor*, const YokeTensor*, int32_t, YokeWork**, YokeError* err) {
          return fill(err, YOKE_UNIMPLEMENTED, "mock: reduce_scatter");
        };
    t.broadcast = [](YokeComm*, const YokeTensor*, int32_t, YokeWork**, YokeError* err) {
      return fill(err, YOKE_UNIMPLEMENTED, "mock: broadcast");
    };
    t.barrier = [](YokeComm* c, YokeError* err) {
      return guard(err, [&] { of(c).world->meet(); });
    };
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
    const auto bytes =
        YOKE_DTYPE_OF(t.dtype) == YOKE_F64 ? sum<double>(numel(t)) : sum<float>(numel(t));
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
const YokeCollectives* MockWorld::collectives(int32_t rank) {
  return &impl_->ranks[rank].table;
}
int64_t MockWorld::all_reduces() const {
  return impl_->num_all_reduces;
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
