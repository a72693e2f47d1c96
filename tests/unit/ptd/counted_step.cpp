#include "tests/unit/ptd/counted_step.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "core/model/gpt2.hpp"
#include "core/model/llama.hpp"
#include "core/model/model_dims.hpp"
#include "core/model/torch_model.hpp"
#include "plugins/ptd/forecast.hpp"
#include "tests/support/temp_folder.hpp"
#include "tests/support/token_batch.hpp"

namespace yoke::ptd::testing {
namespace {

constexpr int kTokens = 64;
constexpr double kLearningRate = 0.00390625;  // exact in fp32, which is what a device reads

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

BlockList make_blocks(const CountedLayout& layout) {
  const yoke::testing::TempFolder folder;
  ModelConfig config;
  config.blocks = layout.blocks;
  if (layout.model == nullptr) {
    config.preset = "tiny";
  } else {
    config.config = folder.write("config.json", layout.model);
  }
  PrecisionConfig precision;
  if (layout.fp8_recipe != nullptr) {
    precision.product = "fp8";
    precision.fp8_recipe = layout.fp8_recipe;
  }
  const Family family =
      model_family(config) == "gpt2" ? gpt2_family(config) : llama_family(config, precision);
  return family.make_blocks(
      {.options = {}, .param_dtype = layout.dtype, .seq_len = kTokens, .data_path = ""});
}

// Adds what each forward leaves behind to `kept`, on the threads that count.
void count_forwards(BlockList& blocks, int64_t& kept) {
  for (TorchBlock& block : blocks.blocks) {
    block.forward = [forward = block.forward, &kept](const at::Tensor& x, const TorchInputs& in) {
      const int64_t before = counter == nullptr ? 0 : counter->live.load();
      at::Tensor out = forward(x, in);
      if (counter != nullptr) kept += counter->live - before;
      return out;
    };
  }
}

void mark_matrices(BlockList& blocks) {
  for (const auto& of_block : blocks.params) {
    for (const auto& [name, leaf] : of_block) {
      if (name.ends_with("proj.weight")) blocks.fp8_uses[name] = Fp8Use::kOneScale;
    }
  }
}

CountingAllocator allocator;

YokePlan plan_of_layout(const CountedLayout& c, const YokeOptimizer& optimizer) {
  YokePlan plan = plan_of({}, optimizer);
  plan.world_size = c.pp * c.ranks_of_stage();
  for (int32_t& degree : plan.degree) degree = 1;
  plan.degree[YOKE_PP] = c.pp;
  plan.degree[YOKE_DP_SHARD] = c.shards;
  plan.degree[YOKE_CP] = c.cp;
  plan.degree[YOKE_TP] = c.tp;
  plan.global_batch = c.micros * c.sequences * c.shards;
  plan.micro_batch = c.sequences;
  plan.param_dtype = c.dtype;
  plan.reduce_dtype = yoke_default_reduce_dtype(c.dtype);
  return plan;
}

void forecast_bytes(const YokeModelSummary& model,
                    const YokePlan& plan,
                    const std::map<std::string, std::string>& given,
                    int pp,
                    CountedPeak& peak) {
  const OptionValues values(given);
  const PtdOptions options(Options(values.values.data(), values.values.size()),
                           plan.degree[YOKE_PP]);
  const Forecast forecast = forecast_step(model, plan, options);
  const RankPlan& part = forecast.ranks[pp];
  const ActionCosts costs(part.step, forecast.lists[pp], part.costs);
  const auto unsharded = costs.unsharded_bytes(), activations = costs.activation_bytes(),
             temporary = costs.temporary_bytes();
  for (const BlockCost& block : part.costs) peak.kept.forecast += block.activation + block.carry;
  if (part.step.keeps_roundings(part.step.micros, false)) peak.roundings = part.step.rounding_bytes;
  if (temporary.empty()) return;
  int64_t most = 0;
  for (size_t i = 0; i < unsharded.size(); ++i)
    most = std::max(most, unsharded[i] + activations[i] + temporary[i]);
  const KeptBytes kept = kept_bytes(part, plan);
  peak.forecast = kept.params + kept.grads + kept.optimizer + most;
}

// Counts the largest number of bytes that this thread's allocations take during the second step.
// kept: what the forwards of a step leave behind, see count_forwards().
void count_bytes(const CountedLayout& c,
                 const YokePlan& plan,
                 const Rank& rank,
                 const YokeModel& model,
                 int64_t& kept,
                 CountedPeak& peak) {
  static std::deque<Counter> counters;  // outlive all allocations
  static std::mutex counters_mutex;
  Counter& own = [&]() -> Counter& {
    const std::lock_guard lock(counters_mutex);
    return counters.emplace_back();
  }();
  const yoke::testing::TokenBatch tokens({c.micros, c.sequences, kTokens, c.shards});
  counter = &own;
  {
    Session session(plan, *plan.optimizer, c.options, rank.host, model);
    session.step(tokens.batch(), 1, 1e-4);
    own.peak = own.live.load();
    kept = 0;
    session.step(tokens.batch(), 2, 1e-4);
  }
  counter = nullptr;
  peak.counted = own.peak;
  peak.kept.counted = kept / c.micros;
}

}  // namespace

CountedAllocations::CountedAllocations() : threads_(at::get_num_threads()) {
  at::set_num_threads(1);
  c10::SetCPUAllocator(&allocator, 255);
}

CountedAllocations::~CountedAllocations() {
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 255);
  at::set_num_threads(threads_);
}

std::vector<CountedPeak> peaks_of(const CountedLayout& c) {
  const YokeOptimizer optimizer = optimizer_of({});
  const YokePlan plan = plan_of_layout(c, optimizer);
  std::vector<CountedPeak> peaks(plan.world_size);
  on_ranks(yoke::Mesh({c.pp, 1, c.shards, c.cp, c.tp}), [&](const Rank& rank) {
    BlockList blocks = make_blocks(c);
    // The products of this model are plain, because blocks do not report what others need.
    if (c.options.count("fp8_gather") > 0) mark_matrices(blocks);
    int64_t kept = 0;
    count_forwards(blocks, kept);
    TorchModelHost host(std::move(blocks), c.dtype, 1, false);
    CountedPeak& peak = peaks[rank.host.rank];
    count_bytes(c, plan, rank, host.model(), kept, peak);
    forecast_bytes(host.summary(), plan, c.options, rank.host.rank / c.ranks_of_stage(), peak);
  });
  return peaks;
}

void observe_second_step(const CountedLayout& c,
                         const std::function<void(const MakeStep& step)>& observe) {
  const YokeOptimizer optimizer = optimizer_of({});
  const YokePlan plan = plan_of_layout(c, optimizer);
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost host(make_blocks(c), c.dtype, 1, false);
    at::manual_seed(1);
    const yoke::testing::TokenBatch tokens({c.micros, c.sequences, kTokens, c.shards});
    Session session(plan, optimizer, c.options, rank.host, host.model());
    session.step(tokens.batch(), 1, 1e-4);
    observe([&] { return session.step(tokens.batch(), 2, 1e-4); });
  });
}

Outcome train_counted(const CountedLayout& c, int steps, bool on_device) {
  const YokeOptimizer optimizer = optimizer_of({});
  const YokePlan plan = plan_of_layout(c, optimizer);
  Outcome outcome;
  on_ranks(yoke::Mesh({1, 1, 1, 1, 1}), [&](const Rank& rank) {
    TorchModelHost model(make_blocks(c), c.dtype, 1, true);
    YokeHost host = on_device ? with_kernels(rank.host) : rank.host;
    if (on_device) host.stream = &host;
    Session session(plan, optimizer, c.options, host, model.model());
    for (int step = 1; step <= steps; ++step) {
      at::manual_seed(step);
      const yoke::testing::TokenBatch tokens({c.micros, c.sequences, kTokens, c.shards});
      const YokeStepResult result = session.step(tokens.batch(), step, kLearningRate);
      outcome.loss.push_back(result.loss_sum / result.loss_weight);
      outcome.grad_norm.push_back(result.grad_norm);
    }
    outcome.wrapped = session.wrapped;
    outcome.state = state_of(session);
  });
  return outcome;
}

}  // namespace yoke::ptd::testing
