#include "tests/unit/deepspeed_stub/rig.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <optional>

#include "tests/support/mock_batch.hpp"
#include "tests/support/mock_element.hpp"
#include "tests/support/mock_model.hpp"
#include "tests/support/mock_world.hpp"
#include "tests/unit/deepspeed_stub/emulated_cuda.hpp"
#include "yoke/tensor.hpp"

namespace yoke::deepspeed_stub::testing {
namespace {

using namespace yoke::testing;

std::string key_of(const YokePiece& piece) {
  return std::string(view(piece.name)) + "/" + std::string(view(piece.kind));
}

// Assembles the state from the pieces of all ranks. May be used by all ranks at the same time.
class Assembly {
 public:
  void add(const YokePiece& p) {
    const std::lock_guard lock(mutex_);
    const int64_t item = item_size(p.dtype), size = numel(p.shape, p.ndim);
    Tensor& whole = state_[key_of(p)];
    std::vector<int>& covered = covered_[key_of(p)];
    if (covered.empty()) {
      whole = {{p.shape, p.shape + p.ndim}, p.dtype, std::vector<char>(size * item)};
      covered.resize(size);
    }
    ASSERT_EQ(whole.dtype, p.dtype);
    if (p.replica != 0) return replicas_.push_back({key_of(p), p.begin * item, bytes_of(p)});
    std::memcpy(&whole.bytes[p.begin * item], data<char>(*p.view), p.count * item);
    for (int64_t i = p.begin; i < p.begin + p.count; ++i) ++covered[i];
  }
  State take() {
    for (const auto& [key, covered] : covered_) {
      for (const int times : covered) EXPECT_EQ(times, 1) << key;
    }
    for (const Replica& r : replicas_) {
      const std::vector<char>& whole = state_.at(r.key).bytes;
      EXPECT_EQ(std::memcmp(&whole[r.begin], r.bytes.data(), r.bytes.size()), 0) << r.key;
    }
    return std::move(state_);
  }

 private:
  struct Replica {
    std::string key;
    int64_t begin;
    std::vector<char> bytes;
  };
  static std::vector<char> bytes_of(const YokePiece& p) {
    const char* first = data<const char>(*p.view);
    return {first, first + p.count * item_size(p.dtype)};
  }

  std::mutex mutex_;
  State state_;
  std::map<std::string, std::vector<int>> covered_;
  std::vector<Replica> replicas_;
};

// Visits the state as a host does. Memory of an EmulatedCuda is accessed only while an Access
// exists. State that is offloaded may be in host memory.
void walk(Session& session,
          int32_t op,
          std::optional<EmulatedCuda>& cuda,
          bool offloads,
          const std::function<void(const YokePiece&)>& visit) {
  session.checkpoint(op, [&](const YokePiece& piece) {
    std::optional<EmulatedCuda::Access> access;
    if (cuda) access.emplace(*cuda);
    const bool scalar = view(piece.kind) == "step";
    const bool on_device = piece.view->device.type == YOKE_DEVICE_CUDA;
    EXPECT_TRUE(on_device == (cuda && !scalar) || (offloads && !on_device));
    visit(piece);
  });
}

void load(Session& session, std::optional<EmulatedCuda>& cuda, const Job& job) {
  walk(session, YOKE_CHECKPOINT_LOAD, cuda, job.offloads(), [&](const YokePiece& p) {
    const Tensor& saved = job.start->at(key_of(p));
    ASSERT_EQ(saved.dtype, p.dtype) << key_of(p);
    const int64_t item = item_size(p.dtype);
    std::memcpy(data<char>(*p.view), &saved.bytes[p.begin * item], p.count * item);
  });
}

std::vector<std::vector<double>> params_of(const State& state, const YokeModelSummary& model) {
  std::vector<std::vector<double>> params;
  for (uint64_t p = 0; p < model.num_params; ++p) {
    const Tensor& t = state.at(std::string(view(model.params[p]->name)) + "/param");
    const size_t n = t.bytes.size() / item_size(t.dtype);
    params.emplace_back(n);
    for (size_t i = 0; i < n; ++i) params.back()[i] = get_element(t.bytes.data(), t.dtype, i);
  }
  return params;
}

void train_rank(const Job& job, MockHost& host, Outcome& outcome, Assembly& assembly) {
  MockModel model({job.run.dtype, job.run.tied});
  MockPlan plan;
  job.run.configure(plan);
  plan.options = job.options;
  plan.plan.world_size = job.ranks;
  const int64_t micro = std::min<int64_t>(job.run.micro_batch, 8 / job.ranks);
  plan.plan.micro_batch = static_cast<int32_t>(micro);
  if (job.reduce != 0) plan.plan.reduce_dtype = job.reduce;
  const bool first = host.host.rank == 0;
  std::optional<EmulatedCuda> cuda;
  YokeModel wrapped = model.model();
  if (job.cuda) {
    cuda.emplace().plug_into(host);
    wrapped = cuda->on_device(wrapped);
  }
  {
    Session session(*job.backend, plan, host, wrapped);
    if (job.start != nullptr) load(session, cuda, job);
    for (int t = job.first_step; t <= job.last_step; ++t) {
      const MockBatch batch({8, micro, host.host.rank, job.ranks}, t);
      const int64_t waits = cuda ? cuda->waits() : 0;
      const YokeStepResult r = session.step(batch.batch(), t, job.run.lr_at(t));
      EXPECT_EQ(r.loss_weight, batch.batch().token_weight);
      if (!first) continue;
      outcome.trace.loss.push_back(r.loss_sum / r.loss_weight);
      outcome.trace.norm.push_back(r.grad_norm);
      outcome.waits.push_back(cuda ? cuda->waits() - waits : 0);
    }
    walk(session, YOKE_CHECKPOINT_SAVE, cuda, job.offloads(), [&](const YokePiece& p) {
      assembly.add(p);
    });
    if (first) outcome.wrapped = session.wrapped;
  }
  EXPECT_EQ(model.log().live_saved, 0);
  EXPECT_EQ(model.log().live_tensors, 0);
}

}  // namespace

const ParallelBackend& plugin() {
  YokeError err = make_error();
  return *parallel_backend_entry_v1(YOKE_ABI_MINOR, &err);
}

Outcome train(const Job& job) {
  Outcome outcome;
  Assembly assembly;
  MockWorld world(job.ranks);
  std::vector<std::vector<std::string>> logs(job.ranks);
  world.run([&](int32_t rank) {
    MockHost host(&world, rank, job.ranks);
    train_rank(job, host, outcome, assembly);
    logs[rank] = host.log;
  });
  for (const auto& lines : logs) outcome.log.insert(outcome.log.end(), lines.begin(), lines.end());
  outcome.bytes = world.bytes();
  outcome.state = assembly.take();
  const MockModel model({job.run.dtype, job.run.tied});
  outcome.trace.params = params_of(outcome.state, model.summary());
  return outcome;
}

std::map<std::string, std::string> small_buckets() {
  return {{"overlap_comm", "true"},
          {"reduce_bucket_size", "35"},
          {"allgather_bucket_size", "16"},
          {"stage3_prefetch_bucket_size", "40"},
          {"stage3_param_persistence_threshold", "7"},
          {"stage3_max_live_parameters", "100"},
          {"stage3_max_reuse_distance", "20"}};
}

}  // namespace yoke::deepspeed_stub::testing
