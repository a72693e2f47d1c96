// Compares the memory that ptd forecasts with the memory that a step takes: the largest number of
// bytes that live on a rank in LibTorch's allocations. Ranks are threads, and each counts what
// it has allocated.
//
//   build/release/bench/memory_forecast
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "core/model/llama.hpp"
#include "core/model/torch_model.hpp"
#include "plugins/ptd/forecast.hpp"
#include "tests/unit/ptd/rig.hpp"

namespace yoke::ptd {
namespace {

constexpr int kTokens = 64;

// ---- Counting ----

struct Counter {
  std::atomic<int64_t> live{0}, peak{0};

  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    if (now > peak) peak = now;
  }
};
thread_local Counter* counter = nullptr;

// Counts allocations for the thread that makes them, whichever thread frees them.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = bytes == 0 ? nullptr : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory != nullptr && counter != nullptr) {
      counter->add(static_cast<int64_t>(bytes));
      const std::lock_guard lock(mutex);
      owners[memory] = {counter, static_cast<int64_t>(bytes)};
    }
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void release(void* memory) {
    {
      const std::lock_guard lock(mutex);
      if (const auto owner = owners.find(memory); owner != owners.end()) {
        owner->second.first->add(-owner->second.second);
        owners.erase(owner);
      }
    }
    std::free(memory);
  }

  static std::mutex mutex;
  static std::unordered_map<void*, std::pair<Counter*, int64_t>> owners;
};
std::mutex CountingAllocator::mutex;
std::unordered_map<void*, std::pair<Counter*, int64_t>> CountingAllocator::owners;

// ---- Runs ----

struct Case {
  const char* name;
  int pp = 1, shards = 1, micros = 8, sequences = 1;
  int32_t dtype = YOKE_F32;
  std::map<std::string, std::string> options{};
};

ModelConfig config() {
  ModelConfig c;
  c.preset = "tiny";
  return c;
}

// The micro-batches of a step: every data rank gets the same tokens.
class Tokens {
 public:
  explicit Tokens(const Case& c) {
    for (int i = 0; i < c.micros; ++i) {
      auto& tensors = tensors_.emplace_back();
      tensors.push_back(at::randint(256, {c.sequences, kTokens}, at::kLong));
      tensors.push_back(tensors[0].clone());
      tensors.push_back(at::arange(kTokens).expand({c.sequences, kTokens}).contiguous());
      auto& views = views_.emplace_back();
      for (const at::Tensor& t : tensors) views.emplace_back(t);
      inputs_.push_back({{view("tokens"), *views[0].get()},
                         {view("targets"), *views[1].get()},
                         {view("positions"), *views[2].get()}});
    }
    for (const auto& list : inputs_) micros_.push_back(micro_batch(list.data(), list.size()));
    for (const YokeMicroBatch& micro : micros_) pointers_.push_back(&micro);
    batch.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
    batch.micros = pointers_.data();
    batch.num_micros = pointers_.size();
    batch.token_weight = static_cast<double>(c.micros) * c.sequences * c.shards * kTokens;
  }

  YokeBatch batch{};

 private:
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<std::vector<TensorView>> views_;
  std::vector<std::vector<YokeInput>> inputs_;
  std::vector<YokeMicroBatch> micros_;
  std::vector<const YokeMicroBatch*> pointers_;
};

struct Result {
  int64_t forecast = 0, counted = 0;
};

std::vector<Result> results_of(const Case& c) {
  YokeOptimizer optimizer = testing::optimizer_of({});
  YokePlan plan = testing::plan_of({}, optimizer);
  plan.world_size = c.pp * c.shards;
  for (int32_t& degree : plan.degree) degree = 1;
  plan.degree[YOKE_PP] = c.pp;
  plan.degree[YOKE_DP_SHARD] = c.shards;
  plan.global_batch = c.micros * c.sequences * c.shards;
  plan.micro_batch = c.sequences;
  plan.param_dtype = c.dtype;
  plan.reduce_dtype = yoke_default_reduce_dtype(c.dtype);
  std::vector<Result> results(plan.world_size);
  testing::on_ranks(yoke::Mesh({c.pp, 1, c.shards, 1, 1}), [&](const testing::Rank& rank) {
    static std::deque<Counter> counters;  // outlive all allocations
    static std::mutex counters_mutex;
    Counter& own = [&]() -> Counter& {
      const std::lock_guard lock(counters_mutex);
      return counters.emplace_back();
    }();
    const Tokens tokens(c);
    TorchModelHost host(
        llama_family(config()).make_blocks({.param_dtype = c.dtype, .seq_len = kTokens}),
        c.dtype,
        1,
        false);
    counter = &own;
    {
      testing::Session session(plan, optimizer, c.options, rank.host, host.model());
      session.step(tokens.batch, 1, 1e-4);
      own.peak = own.live.load();
      session.step(tokens.batch, 2, 1e-4);
    }
    counter = nullptr;
    const testing::OptionValues values(c.options);
    const PtdOptions options(Options(values.values.data(), values.values.size()), c.pp);
    const Forecast forecast = forecast_step(host.summary(), plan, options);
    const int pp = rank.host.rank / c.shards;
    const RankPlan& part = forecast.ranks[pp];
    const KeptBytes kept = kept_bytes(part, plan);
    const ActionCosts costs(part.step, forecast.lists[pp], part.costs);
    const auto unsharded = costs.unsharded_bytes(), activations = costs.activation_bytes();
    int64_t most = 0;
    for (size_t i = 0; i < unsharded.size(); ++i)
      most = std::max(most, unsharded[i] + activations[i]);
    results[rank.host.rank] = {kept.params + kept.grads + kept.optimizer + most, own.peak};
  });
  return results;
}

const Case kCases[] = {
    {.name = "one rank"},
    {.name = "one rank, 4 sequences", .micros = 2, .sequences = 4},
    {.name = "one rank, recompute", .sequences = 4, .options = {{"activation_checkpoint", "full"}}},
    {.name = "one rank, bf16", .sequences = 4, .dtype = YOKE_BF16},
    {.name = "fsdp 2", .shards = 2, .sequences = 4},
    {.name = "fsdp 2, whole", .shards = 2, .options = {{"reshard_after_forward", "false"}}},
    {.name = "fsdp 2, unsharded", .shards = 2, .options = {{"accumulate", "unsharded"}}},
    {.name = "fsdp 2, bf16", .shards = 2, .sequences = 2, .dtype = YOKE_BF16},
    {.name = "gpipe 2", .pp = 2, .options = {{"pp_schedule", "gpipe"}}},
    {.name = "1f1b 2", .pp = 2, .sequences = 2},
    {.name = "1f1b 4", .pp = 4, .sequences = 2},
    {.name = "1f1b 4, recompute",
     .pp = 4,
     .sequences = 4,
     .options = {{"activation_checkpoint", "full"}}},
    {.name = "gpipe 2, stages",
     .pp = 2,
     .sequences = 4,
     .options = {{"pp_schedule", "gpipe"}, {"activation_checkpoint", "stage"}}},
    {.name = "interleaved 2", .pp = 2, .options = {{"pp_schedule", "interleaved"}}},
    {.name = "looped_bfs 2", .pp = 2, .options = {{"pp_schedule", "looped_bfs"}}},
    {.name = "zb_h1 2", .pp = 2, .sequences = 2, .options = {{"pp_schedule", "zb_h1"}}},
    {.name = "zb_v 2", .pp = 2, .options = {{"pp_schedule", "zb_v"}}},
    {.name = "v_min 2", .pp = 2, .options = {{"pp_schedule", "v_min"}}},
    {.name = "1f1b 2, fsdp 2", .pp = 2, .shards = 2, .sequences = 2},
    {.name = "interleaved 2, fsdp 2, 1 whole",
     .pp = 2,
     .shards = 2,
     .options = {{"pp_schedule", "interleaved"}, {"pp_whole", "1"}}},
};

}  // namespace

int run() {
  at::set_num_threads(1);
  CountingAllocator counting;
  c10::SetCPUAllocator(&counting, 255);
  double worst = 1;
  for (const Case& c : kCases) {
    const std::vector<Result> results = results_of(c);
    for (int pp = 0; pp < c.pp; ++pp) {
      const Result& r = results[pp * c.shards];
      const double ratio = static_cast<double>(r.forecast) / static_cast<double>(r.counted);
      if (std::abs(ratio - 1) > std::abs(worst - 1)) worst = ratio;
      std::printf("%-32s pp %d  forecast %8.1f KiB  counted %8.1f KiB  ratio %.4f\n",
                  c.name,
                  pp,
                  static_cast<double>(r.forecast) / 1024,
                  static_cast<double>(r.counted) / 1024,
                  ratio);
    }
  }
  std::printf("worst ratio %.4f\n", worst);
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 255);
  return 0;
}

}  // namespace yoke::ptd

int main() {
  return yoke::ptd::run();
}
