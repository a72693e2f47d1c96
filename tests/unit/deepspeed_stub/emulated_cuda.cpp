#include "tests/unit/deepspeed_stub/emulated_cuda.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "plugins/deepspeed_stub/kernels/device_kernels.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

constexpr int64_t kArena = int64_t{1} << 26;
constexpr int64_t kAlignment = 256;  // alignment of cudaMalloc
constexpr int kThreads = 5;
constexpr char kUndefined = '\xff';  // fills released and unwritten memory, so that it reads as NaN

thread_local EmulatedCuda* of_this_rank = nullptr;

struct EmulatedQueue : Queue {
  EmulatedCuda* device;
};
EmulatedCuda& of(Queue* queue) {
  return *static_cast<EmulatedQueue*>(queue)->device;
}

}  // namespace

// ---- The platform ----

struct EmulatedPlatform {
  static void issue(Queue* queue, std::function<void()> work) { of(queue).issue(std::move(work)); }

  template <class Operation>
  static void elements(Queue* queue, const Operation& operation, int64_t n) {
    issue(queue, [=] {
      for (int t = 0; t < kThreads; ++t) {
        Operation own = operation;
        if (own.begin()) run_share(own, n, t, kThreads);
      }
    });
  }
  template <class Operation>
  static void rows(Queue* queue, const Operation& operation, const Rows& rows) {
    issue(queue, [=] {
      for (int64_t row = 0; row < number_of(rows); ++row) {
        for (int t = 0; t < kThreads; ++t) run_row(operation, rows, row, t, kThreads);
      }
    });
  }
  static double block_sum(std::vector<double> sums) {
    for (int half = kNormThreads / 2; half > 0; half /= 2) {
      for (int t = 0; t < kNormThreads; ++t) fold(sums.data(), t, half);
    }
    return sums[0];
  }
  template <class T>
  static void squared_norm(Queue* queue, int64_t n, const T* x, double* sum) {
    issue(queue, [=] {
      const int blocks = norm_blocks<T>(n);
      std::vector<double> parts(kNormThreads);
      for (int b = 0; b < blocks; ++b) {
        std::vector<double> sums(kNormThreads);
        for (int t = 0; t < kNormThreads; ++t) {
          const int64_t thread = int64_t{b} * kNormThreads + t;
          sums[t] = norm_share(x, n, thread, int64_t{blocks} * kNormThreads);
        }
        parts[b] = block_sum(std::move(sums));
      }
      *sum = block_sum(std::move(parts));
    });
  }
  template <class Function>
  static void once(Queue* queue, const Function& function) {
    issue(queue, function);
  }

  static Queue* open(const YokeDevice&, void* stream) {
    auto* const queue = new EmulatedQueue;
    queue->device = static_cast<EmulatedCuda*>(stream);
    return queue;
  }
  static void close(Queue* queue) noexcept {
    of(queue).finish();
    delete static_cast<EmulatedQueue*>(queue);
  }
  static void* allocate(Queue* queue, int64_t bytes) { return of(queue).allocate(bytes); }
  static void release(Queue* queue, void* memory) noexcept { of(queue).release(memory); }
  static void zero(Queue* queue, void* memory, int64_t bytes) {
    issue(queue, [=] { std::memset(memory, 0, static_cast<size_t>(bytes)); });
  }
  static void upload(Queue* queue, const void* host, void* memory, int64_t bytes) {
    const EmulatedCuda::Access access(of(queue));
    ++of(queue).waits_;
    std::memcpy(memory, host, static_cast<size_t>(bytes));
  }
  static void download(Queue* queue, const void* memory, void* host, int64_t bytes) {
    const EmulatedCuda::Access access(of(queue));
    ++of(queue).waits_;
    std::memcpy(host, memory, static_cast<size_t>(bytes));
  }
  static void* allocate_host(Queue* queue, int64_t bytes, bool) {
    return of(queue).allocate_host(bytes);
  }
  static void release_host(Queue* queue, void* memory, bool) noexcept {
    of(queue).release_host(memory);
  }
  static void issue_upload(Queue* queue, const void* host, void* memory, int64_t bytes) {
    issue(queue, [=] { std::memcpy(memory, host, static_cast<size_t>(bytes)); });
  }
  static void issue_download(Queue* queue, const void* memory, void* host, int64_t bytes) {
    issue(queue, [=] { std::memcpy(host, memory, static_cast<size_t>(bytes)); });
  }
  static void* mark(Queue* queue) {
    const EmulatedCuda& device = of(queue);
    return new int64_t(device.done_ + static_cast<int64_t>(device.work_.size()));
  }
  static void await(Queue* queue, void* mark) {
    ++of(queue).waits_;
    const EmulatedCuda::Access access(of(queue), *static_cast<int64_t*>(mark));
    drop(queue, mark);
  }
  static void drop(Queue*, void* mark) noexcept { delete static_cast<int64_t*>(mark); }
  static const Kernels& kernels() {
    static constexpr Kernels table = DeviceKernels<EmulatedPlatform>::table("emulated");
    return table;
  }
};

const Platform& emulated_platform() {
  using P = EmulatedPlatform;
  static constexpr Platform platform = {P::kernels,
                                        P::open,
                                        P::close,
                                        P::allocate,
                                        P::release,
                                        P::zero,
                                        P::upload,
                                        P::download,
                                        P::allocate_host,
                                        P::release_host,
                                        P::issue_upload,
                                        P::issue_download,
                                        P::mark,
                                        P::await,
                                        P::drop};
  return platform;
}

// ---- Memory ----

EmulatedCuda::EmulatedCuda()
    : arena_(static_cast<char*>(
          mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  of_this_rank = this;
}

EmulatedCuda::~EmulatedCuda() {
  EXPECT_EQ(live_, 0) << "memory of the device that was not released";
  {
    const Access access(*this);
    EXPECT_TRUE(host_memory_.empty()) << "host memory that was not released";
    for (const auto& [place, bytes] : released_host_memory_) {
      EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == kUndefined; }))
          << "something was written to released host memory";
    }
    for (const auto& [size, places] : released_) {
      for (void* const place : places) {
        const char* const first = static_cast<const char*>(place);
        EXPECT_TRUE(std::all_of(first, first + size, [](char c) { return c == kUndefined; }))
            << "something was written to released memory";
      }
    }
  }
  of_this_rank = nullptr;
  munmap(arena_, kArena);
}

void* EmulatedCuda::allocate(int64_t bytes) {
  const int64_t size = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<void*>& again = released_[size];
  void* memory = arena_ + used_;
  if (!again.empty()) {
    memory = again.back();
    again.pop_back();
  } else {
    used_ += size;
    if (used_ > kArena) throw Error(YOKE_RESOURCE_EXHAUSTED, "the emulated device is full");
  }
  sizes_[memory] = size;
  ++live_;
  issue([=] { std::memset(memory, kUndefined, static_cast<size_t>(size)); });
  return memory;
}

void EmulatedCuda::release(void* memory) {
  const int64_t size = sizes_.at(memory);
  --live_;
  issue([=] { std::memset(memory, kUndefined, static_cast<size_t>(size)); });
  released_[size].push_back(memory);
}

void* EmulatedCuda::allocate_host(int64_t bytes) {
  constexpr size_t kLine = 64;
  std::vector<char> memory(static_cast<size_t>(bytes) + kLine, kUndefined);
  const size_t skipped = kLine - reinterpret_cast<uintptr_t>(memory.data()) % kLine;
  void* const aligned = memory.data() + skipped;
  host_memory_[aligned] = std::move(memory);
  return aligned;
}

void EmulatedCuda::release_host(void* memory) {
  auto released = host_memory_.extract(memory);
  std::fill(released.mapped().begin(), released.mapped().end(), kUndefined);
  released_host_memory_.insert(std::move(released));
}

bool EmulatedCuda::owns(const void* memory) const {
  const char* const p = static_cast<const char*>(memory);
  return p >= arena_ && p < arena_ + kArena;
}

void EmulatedCuda::finish() {
  if (!work_.empty()) Access{*this};
}

EmulatedCuda::Access::Access(EmulatedCuda& device, int64_t until) : device_(device) {
  if (device_.accesses_++ == 0) mprotect(device_.arena_, kArena, PROT_READ | PROT_WRITE);
  while (!device_.work_.empty() && device_.done_ < until) {
    const std::function<void()> work = std::move(device_.work_.front());
    device_.work_.pop_front();
    ++device_.done_;
    work();
  }
}

EmulatedCuda::Access::~Access() {
  if (--device_.accesses_ == 0) mprotect(device_.arena_, kArena, PROT_NONE);
}

// ---- The host's services and the model on the stream ----

struct EmulatedServices {
  using Access = EmulatedCuda::Access;

  // Calls f if all tensors are in the device's memory; else returns INVALID_ARGUMENT.
  template <class F>
  static int32_t guarded(YokeError* err, std::initializer_list<const YokeTensor*> tensors, F&& f) {
    return guard(err, [&] {
      for (const YokeTensor* t : tensors) {
        const bool ours = of_this_rank->owns(t->data) || numel(*t) == 0;
        if (t->device.type != YOKE_DEVICE_CUDA || !ours)
          throw Error(YOKE_INVALID_ARGUMENT, "the emulated device was given foreign memory");
      }
      call(f);
    });
  }

  static const YokeHeader* get_service(void* ctx, const char* name, uint64_t min_size) {
    EmulatedCuda& device = *of_this_rank;
    const YokeHeader* const found = device.host_.get_service(ctx, name, min_size);
    if (found == nullptr) return nullptr;
    device.behind_ = *reinterpret_cast<const YokeCollectives*>(found);
    device.collectives_ = device.behind_;
    YokeCollectives& table = device.collectives_;
    table.all_reduce =
        [](YokeComm* comm, const YokeTensor* inout, int32_t op, YokeWork** work, YokeError* err) {
          return guarded(err, {inout}, [&](YokeError* e) {
            return of_this_rank->behind_.all_reduce(comm, inout, op, work, e);
          });
        };
    table.all_gather = [](YokeComm* comm,
                          const YokeTensor* out,
                          const YokeTensor* in,
                          YokeWork** work,
                          YokeError* err) {
      return guarded(err, {out, in}, [&](YokeError* e) {
        return of_this_rank->behind_.all_gather(comm, out, in, work, e);
      });
    };
    table.reduce_scatter = [](YokeComm* comm,
                              const YokeTensor* out,
                              const YokeTensor* in,
                              int32_t op,
                              YokeWork** work,
                              YokeError* err) {
      return guarded(err, {out, in}, [&](YokeError* e) {
        return of_this_rank->behind_.reduce_scatter(comm, out, in, op, work, e);
      });
    };
    table.wait = [](YokeWork* work, YokeError* err) {
      const Access access(*of_this_rank);
      return of_this_rank->behind_.wait(work, err);
    };
    return &table.header;
  }

  static int32_t bind_param(void* ctx, int64_t param, const YokeTensor* view, YokeError* err) {
    const auto bind = [&](YokeError* e) {
      return of_this_rank->model_.bind_param(ctx, param, view, e);
    };
    return view == nullptr ? bind(err) : guarded(err, {view}, bind);
  }

  static int32_t block_forward(void* ctx,
                               const YokeForwardArgs* args,
                               YokeForwardResult* out,
                               YokeError* err) {
    const Access access(*of_this_rank);
    return of_this_rank->model_.block_forward(ctx, args, out, err);
  }

  // The model frees the memory of a gradient when on_grad_ready returns. On a real stream the
  // backend's work on it would run before the free, so here it is completed before the return.
  static int32_t block_backward(void* ctx,
                                const YokeBackwardArgs* args,
                                YokeManagedTensor** grad_in,
                                YokeError* err) {
    YokeBackwardArgs ours = *args;
    ours.on_grad_ctx = const_cast<YokeBackwardArgs*>(args);
    ours.on_grad_ready = [](void* given, int64_t param, const YokeTensor* grad, YokeError* e) {
      EmulatedCuda& device = *of_this_rank;
      const auto& theirs = *static_cast<const YokeBackwardArgs*>(given);
      const int accesses = std::exchange(device.accesses_, 0);
      mprotect(device.arena_, kArena, PROT_NONE);
      const int32_t code = theirs.on_grad_ready(theirs.on_grad_ctx, param, grad, e);
      mprotect(device.arena_, kArena, PROT_READ | PROT_WRITE);
      device.accesses_ = accesses;
      device.finish();
      return code;
    };
    const Access access(*of_this_rank);
    return of_this_rank->model_.block_backward(ctx, &ours, grad_in, err);
  }
};

void EmulatedCuda::plug_into(yoke::testing::MockHost& host) {
  host_ = host.host;
  host.host.device = {YOKE_DEVICE_CUDA, 0};
  host.host.stream = this;
  host.host.get_service = EmulatedServices::get_service;
}

YokeModel EmulatedCuda::on_device(const YokeModel& model) {
  model_ = model;
  YokeModel ours = model;
  ours.bind_param = EmulatedServices::bind_param;
  ours.block_forward = EmulatedServices::block_forward;
  ours.block_backward = EmulatedServices::block_backward;
  return ours;
}

}  // namespace yoke::deepspeed_stub::testing
