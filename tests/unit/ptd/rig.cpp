#include "tests/unit/ptd/rig.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "core/backend/services.hpp"
#include "core/comm/virtual_world.hpp"
#include "core/cuda/device_runtime.hpp"
#include "yoke/text.hpp"

namespace yoke::ptd::testing {
namespace {

const ParallelBackend& plugin() {
  YokeError err = make_error();
  return *parallel_backend_entry_v1(YOKE_ABI_MINOR, &err);
}

std::string key_of(const YokePiece& piece) {
  return std::string(view(piece.kind)) + " " + std::string(view(piece.name));
}

// Assembles whole tensors from the pieces of all ranks. Throws unless the pieces with replica 0
// cover every element exactly once.
class Assembly {
 public:
  void add(const YokePiece& piece) {
    const std::lock_guard lock(mutex_);
    if (piece.replica != 0) return;
    const std::string key = key_of(piece);
    if (!state_.count(key)) {
      const at::IntArrayRef shape(piece.shape, static_cast<size_t>(piece.ndim));
      state_[key] = at::zeros(shape, scalar_type(piece.dtype));
    }
    state_[key].view({-1}).narrow(0, piece.begin, piece.count).copy_(borrow(*piece.view));
    covered_[key] += piece.count;
  }
  State take() {
    for (const auto& [key, tensor] : state_) {
      if (covered_[key] != tensor.numel()) throw std::logic_error("the pieces do not tile " + key);
    }
    return std::move(state_);
  }

 private:
  std::mutex mutex_;
  State state_;
  std::map<std::string, int64_t> covered_;
};

void load(Session& handles, const State& start) {
  handles.checkpoint(YOKE_CHECKPOINT_LOAD, [&](const YokePiece& piece) {
    borrow(*piece.view)
        .copy_(start.at(key_of(piece)).reshape({-1}).narrow(0, piece.begin, piece.count));
  });
}

// Checks that the backend has used the scale, and skips a step only if the scale is too large. A
// program that is no test uses this file as well, so a failure is an exception.
void require(bool skipped, double scale, const YokeStepResult& result) {
  if ((result.skipped != 0) == skipped && result.loss_scale == scale) return;
  throw std::runtime_error(concat("loss scale ", scale, ": the result has the scale ") +
                           concat(result.loss_scale, ", skipped = ", result.skipped) +
                           concat(", norm ", result.grad_norm));
}

void train_rank(
    const Job& job, const Rank& rank, const State* start, Outcome& outcome, Assembly& assembly) {
  TorchModelHost model(job.model.blocks(), dtype_of(job.model.dtype), TinyModel::kSeed, true);
  YokeHost host = rank.host;
  if (job.stream) host.stream = &host;
  if (job.kernels) host = with_kernels(host);
  Session handles(job, host, model.model());
  if (start != nullptr) load(handles, *start);
  const bool first = rank.host.rank == 0;
  int64_t step = job.first_step;
  for (; step < job.first_step + job.steps; ++step) {
    const TinyBatch batch(job, (step - 1) * job.global_batch, rank.host.rank % job.data_ranks());
    if (job.overflows) {
      constexpr double kTooLarge = 0x1p100;
      require(true, kTooLarge, handles.step(batch.get(), step, job.lr, 0, kTooLarge));
    }
    const YokeStepResult result = handles.step(batch.get(), step, job.lr, 0, job.loss_scale);
    require(false, job.loss_scale, result);
    if (!first) continue;
    outcome.loss.push_back(result.loss_sum / result.loss_weight);
    outcome.grad_norm.push_back(result.grad_norm);
  }
  if (first) outcome.counts = rank.world.counts();
  const TinyBatch batch(job, (step - 1) * job.global_batch, rank.host.rank % job.data_ranks());
  const YokeStepResult result = handles.step(batch.get(), step, 0, YOKE_STEP_FORWARD_ONLY);
  if (first) {
    outcome.eval_loss = result.loss_sum / result.loss_weight;
    outcome.wrapped = handles.wrapped;
  }
  handles.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) { assembly.add(piece); });
}

}  // namespace

State state_of(Session& session) {
  Assembly assembly;
  session.checkpoint(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece) { assembly.add(piece); });
  return assembly.take();
}

YokeHost with_kernels(YokeHost host) {
  static const TorchKernels kernels{
      YOKE_HEADER(TorchKernels, 0), nullptr, [](void*, const AdamWTensors& tensors) {
        cuda_runtime().adamw(tensors);
      }};
  static std::atomic<decltype(host.get_service)> others;  // the same for all ranks
  others = host.get_service;
  host.get_service = [](void* ctx, const char* name, uint64_t size) -> const YokeHeader* {
    if (std::string_view(name) == "yoke.torch_kernels/1") return &kernels.header;
    return others.load()(ctx, name, size);
  };
  return host;
}

TinyBatch::TinyBatch(const Job& job, int64_t first_sample, int data_rank) {
  const int64_t size = job.global_batch / (job.data_ranks() * job.accumulation);
  for (int a = 0; a < job.accumulation; ++a) {
    micros_.emplace_back(first_sample + (int64_t{a} * job.data_ranks() + data_rank) * size, size);
  }
  for (const TinySamples& micro : micros_) {
    auto& pair = views_.emplace_back();
    pair.emplace_back(micro.tokens);
    pair.emplace_back(micro.targets);
    inputs_.push_back({{view("tokens"), *pair[0].get()}, {view("targets"), *pair[1].get()}});
  }
  for (size_t a = 0; a < inputs_.size(); ++a) {
    const double targets = count_targets(micros_[a].targets);
    contract_.push_back(micro_batch(inputs_[a].data(), inputs_[a].size(), targets));
  }
  for (const YokeMicroBatch& micro : contract_) pointers_.push_back(&micro);
  batch_.header = YOKE_HEADER(YokeBatch, YOKE_ID_BATCH);
  batch_.micros = pointers_.data();
  batch_.num_micros = pointers_.size();
  batch_.token_weight = count_targets(TinySamples(first_sample, job.global_batch).targets);
}

Session::Session(const Job& job, const YokeHost& host, const YokeModel& model)
    : Session(
          plan_of(job, optimizer_of(job)), optimizer_of(job), job.options, host, model, job.given) {
}

Session::Session(const YokePlan& plan,
                 const YokeOptimizer& optimizer,
                 const std::map<std::string, std::string>& options,
                 const YokeHost& host,
                 const YokeModel& model,
                 const std::vector<std::string>& given)
    : options_(options, given), optimizer_(optimizer), plan_(plan) {
  plan_.optimizer = &optimizer_;
  YokeInitArgs init{};
  init.header = YOKE_HEADER(YokeInitArgs, YOKE_ID_INIT_ARGS);
  init.plan = &plan_;
  init.options = options_.values.data();
  init.num_options = options_.values.size();
  init.host = &host;
  YokeError err = make_error();
  check(plugin().init(&init, &context_, &err), err);
  wrapped.header = YOKE_HEADER(YokeWrapResult, YOKE_ID_WRAP_RESULT);
  const int32_t code = plugin().wrap_model(context_, &model, &wrapped, &err);
  if (code != YOKE_OK) plugin().destroy(&context_);
  check(code, err);
}

Session::~Session() {
  plugin().destroy_model(&wrapped.model);
  plugin().destroy(&context_);
}

YokeStepResult Session::step(
    const YokeBatch& batch, int64_t step, double lr, uint32_t flags, double loss_scale) {
  const YokeStepArgs args = {
      YOKE_HEADER(YokeStepArgs, YOKE_ID_STEP_ARGS), &batch, step, lr, flags, 0, loss_scale};
  YokeStepResult out{};
  out.header = YOKE_HEADER(YokeStepResult, YOKE_ID_STEP_RESULT);
  YokeError err = make_error();
  check(plugin().step(wrapped.model, &args, &out, &err), err);
  return out;
}

void Session::checkpoint(int32_t op, const std::function<void(const YokePiece&)>& visit) {
  YokeCheckpointArgs args{};
  args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
  args.op = op;
  args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
    return guard(
        err, [&] { (*static_cast<const std::function<void(const YokePiece&)>*>(ctx))(*piece); });
  };
  args.visit_ctx = const_cast<std::function<void(const YokePiece&)>*>(&visit);
  YokeError err = make_error();
  check(plugin().checkpoint(wrapped.model, &args, &err), err);
}

Outcome train(const Job& job, const State* start) {
  Outcome outcome;
  Assembly assembly;
  on_ranks(yoke::Mesh({job.pp, job.replicas, job.shards, 1, 1}),
           [&](const Rank& rank) { train_rank(job, rank, start, outcome, assembly); });
  outcome.state = assembly.take();
  return outcome;
}

Outcome train_plain(const Job& job) {
  at::set_num_threads(1);
  Outcome outcome;
  TinyModel::Params params = job.model.plain_params();
  std::map<std::string, at::Tensor> first, second;
  for (int64_t step = 1; step <= job.steps; ++step) {
    const TinySamples samples((step - 1) * job.global_batch, job.global_batch);
    const at::Tensor loss = job.model.plain_loss(params, samples.tokens, samples.targets) /
                            count_targets(samples.targets);
    torch::autograd::backward({loss});
    double squares = 0;
    for (auto& [name, p] : params) {
      if (p.requires_grad() && !p.grad().defined()) p.mutable_grad() = at::zeros_like(p);
    }
    for (const auto& [name, p] : params) {
      if (p.requires_grad()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    const double scale = job.clip > 0 ? std::min(1.0, job.clip / (norm + 1e-6)) : 1.0;
    at::NoGradGuard no_grad;
    for (auto& [name, p] : params) {
      if (!p.requires_grad()) continue;
      const bool adds_decay = job.optimizer == YOKE_ADAM || job.optimizer == YOKE_ADAM_UNCORRECTED;
      const bool corrects = job.optimizer == YOKE_ADAMW || job.optimizer == YOKE_ADAM;
      const at::Tensor decay = p.dim() >= 2 ? p * 0.1 : at::zeros_like(p);
      const at::Tensor g = adds_decay ? p.grad() * scale + decay : p.grad() * scale;
      at::Tensor& m = first.try_emplace(name, at::zeros_like(p)).first->second;
      at::Tensor& v = second.try_emplace(name, at::zeros_like(p)).first->second;
      if (!adds_decay) p.sub_(job.lr * decay);
      if (job.optimizer == YOKE_SGD) {
        m.copy_(job.momentum * m + g);
        p.sub_(job.lr * m);
      } else if (job.optimizer == YOKE_LION) {
        p.sub_(job.lr * at::sign(0.9 * m + 0.1 * g));
        m.copy_(0.95 * m + 0.05 * g);
      } else {
        m.copy_(0.9 * m + 0.1 * g);
        v.copy_(0.95 * v + 0.05 * g * g);
        const double c1 = corrects ? 1 - std::pow(0.9, step) : 1;
        const double c2 = corrects ? 1 - std::pow(0.95, step) : 1;
        p.sub_(job.lr / c1 * m / (at::sqrt(v) / std::sqrt(c2) + 1e-8));
      }
      p.mutable_grad().reset();
    }
    outcome.loss.push_back(loss.item<double>());
    outcome.grad_norm.push_back(norm);
  }
  at::NoGradGuard no_grad;
  const TinySamples next(job.steps * job.global_batch, job.global_batch);
  outcome.eval_loss = job.model.plain_loss(params, next.tokens, next.targets).item<double>() /
                      count_targets(next.targets);
  for (const auto& [name, p] : params) outcome.state["param " + name] = p.detach();
  return outcome;
}

void on_ranks(const yoke::Mesh& mesh, const std::function<void(const Rank&)>& body) {
  const int size = mesh.size();
  const auto virtual_world = make_virtual_world(size);
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      at::set_num_threads(1);
      try {
        Rendezvous rendezvous;
        rendezvous.rank = r;
        rendezvous.world_size = size;
        rendezvous.virtual_world = virtual_world;
        CommOptions options;
        options.check = CommCheck::kFull;
        const auto world = World::connect(rendezvous, options);
        world->set_mesh(mesh);
        const HostServices services(
            *world, [](int32_t, const std::string&) {}, nullptr);
        body({*world, *services.host()});
        world->shutdown();
      } catch (...) {
        failures[r] = std::current_exception();
        virtual_world->abort("rank " + std::to_string(r) + " failed");
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

OptionValues::OptionValues(const std::map<std::string, std::string>& set,
                           const std::vector<std::string>& given) {
  const YokeDescription* description = nullptr;
  YokeError err = make_error();
  check(plugin().describe(&description, &err), err);
  texts_.reserve(description->num_options);
  for (uint64_t i = 0; i < description->num_options; ++i) {
    const YokeOptionInfo& info = *description->options[i];
    const auto at = set.find(std::string(view(info.key)));
    texts_.push_back(at == set.end() ? std::string(view(info.default_value)) : at->second);
    const std::string& text = texts_.back();
    YokeOption option{};
    option.key = info.key;
    option.type = info.type;
    option.given = std::count(given.begin(), given.end(), std::string(view(info.key))) > 0;
    option.string_value = view(text);
    if (info.type == YOKE_OPTION_FILE && !text.empty()) {
      std::ifstream file(text);
      option.content = view(contents_.emplace_back(std::istreambuf_iterator<char>(file),
                                                   std::istreambuf_iterator<char>()));
    }
    if (info.type == YOKE_OPTION_BOOL) option.int_value = text == "true";
    if (info.type == YOKE_OPTION_INT && !text.empty()) option.int_value = std::stoll(text);
    values.push_back(option);
  }
}

YokeOptimizer optimizer_of(const Job& job) {
  YokeOptimizer o{};
  o.header = YOKE_HEADER(YokeOptimizer, YOKE_ID_OPTIMIZER);
  o.kind = job.optimizer;
  o.beta1 = 0.9;
  o.beta2 = 0.95;
  o.eps = 1e-8;
  o.momentum = job.momentum;
  o.weight_decay = 0.1;
  o.clip = job.clip;
  return o;
}

YokePlan plan_of(const Job& job, const YokeOptimizer& optimizer) {
  YokePlan p{};
  p.header = YOKE_HEADER(YokePlan, YOKE_ID_PLAN);
  p.optimizer = &optimizer;
  p.world_size = job.world();
  for (int32_t& degree : p.degree) degree = 1;
  p.degree[YOKE_PP] = job.pp;
  p.degree[YOKE_DP_REPLICATE] = job.replicas;
  p.degree[YOKE_DP_SHARD] = job.shards;
  p.global_batch = static_cast<int32_t>(job.global_batch);
  p.micro_batch = static_cast<int32_t>(job.global_batch / (job.data_ranks() * job.accumulation));
  const at::ScalarType wide = job.model.dtype == at::kDouble ? at::kDouble : at::kFloat;
  p.param_dtype = dtype_of(job.model.dtype);
  p.reduce_dtype = dtype_of(job.reduce.value_or(wide));
  return p;
}

std::vector<std::string> ask_plan(const Job& job,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given) {
  TorchModelHost model(job.model.blocks(), dtype_of(job.model.dtype), TinyModel::kSeed, true);
  return ask_plan(model.summary(), job.options, plan, given);
}

std::vector<std::string> ask_plan(const YokeModelSummary& model,
                                  const std::map<std::string, std::string>& set,
                                  YokePlan& plan,
                                  const std::vector<std::string>& given,
                                  const YokeHeader* extensions) {
  const OptionValues options(set, given);
  std::vector<std::string> texts;
  YokePlanArgs args{};
  args.header = YOKE_HEADER(YokePlanArgs, YOKE_ID_PLAN_ARGS);
  args.header.next = extensions;
  args.model = &model;
  args.options = options.values.data();
  args.num_options = options.values.size();
  args.refuse = [](void* ctx, const YokeRefusal* r) {
    auto& list = *static_cast<std::vector<std::string>*>(ctx);
    list.push_back((r->note ? "note: " : "") + std::string(view(r->key)) + " = " +
                   std::string(view(r->given)) + "; allowed: " + std::string(view(r->allowed)) +
                   "; " + std::string(view(r->hint)));
  };
  args.refuse_ctx = &texts;
  YokeError err = make_error();
  plugin().plan(&args, &plan, &err);
  return texts;
}

}  // namespace yoke::ptd::testing
