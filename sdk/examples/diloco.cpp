// diloco: local training on top of any other backend, with rare communication (DiLoCo, Douillard et
// al. 2023; the defaults are those of OpenDiLoCo).
//
// A worker is a group of ranks that trains independently, with an inner backend. Workers differ
// along dp_replicate; the inner world of a worker spans the other axes. Every `local_steps` steps
// the workers synchronise. The change of their parameters since the last time, averaged over the
// workers, serves as the gradient of an outer SGD with Nesterov momentum:
//
//   d = anchor - mean over workers of their parameters
//   v = momentum * v + d
//   anchor = anchor - lr * (d + momentum * v)
//
// Every worker continues from the new anchor. The anchor and v have the size of the parameters and
// are kept in fp64 in host memory.
//
// The code here does not depend on the inner backend's layout: it reads and writes the parameters
// through the inner checkpoint function. It therefore works with and without sharding.
#include <cmath>
#include <cstring>
#include <vector>

#include "yoke/comm.hpp"
#include "yoke/flat.hpp"
#include "yoke/inner.hpp"

namespace {

using yoke::Options;

constexpr uint32_t kWorkers = YOKE_AXIS_BIT(YOKE_DP_REPLICATE);
constexpr uint32_t kInside = YOKE_ALL_AXES & ~kWorkers;

// Returns the plan for the inner backend, which covers one worker's share of the ranks and the
// batch.
YokePlan inner_plan(const YokePlan& outer) {
  YokePlan inner = yoke::copied(outer);
  const int32_t workers = outer.degree[YOKE_DP_REPLICATE];
  inner.world_size /= workers;
  inner.global_batch /= workers;
  inner.degree[YOKE_DP_REPLICATE] = 1;
  return inner;
}

// ---- The outer optimizer ----

// The anchor and the velocity of all parameters that this rank holds, as one array of fp64 numbers.
class Outer {
 public:
  Outer(const Options& options, const yoke::Comm& workers)
      : step_{.lr = options.number("lr"), .keep = 1, .momentum = options.number("momentum")},
        workers_(workers) {}

  // Sets the anchor to the given parameters, which are those of this rank's pieces in sequence.
  void start(const std::vector<double>& values) {
    anchor_ = values;
    velocity_.assign(values.size(), 0);
  }
  // Makes one outer step and replaces `values`, the worker's parameters, by the new anchor.
  // Collective over the workers.
  void step(std::vector<double>& values) {
    workers_.all_reduce({values.data(), static_cast<int64_t>(values.size()), YOKE_F64}).wait();
    for (size_t i = 0; i < values.size(); ++i) {
      const double moved = anchor_[i] - values[i] / workers_.size();
      anchor_[i] = yoke_nesterov(&step_, anchor_[i], moved, &velocity_[i]);
    }
    values = anchor_;
  }
  std::vector<double>& anchor() { return anchor_; }
  std::vector<double>& velocity() { return velocity_; }

 private:
  const YokeSgd step_;
  const yoke::Comm& workers_;
  std::vector<double> anchor_, velocity_;
};

// ---- The model of a worker ----

// Settings and communicators that all models of a context share.
struct Setup {
  const YokeHost& host;
  int64_t local_steps;
  yoke::Comm workers;  // this rank's counterparts in all workers
  yoke::Comm shards;   // the data ranks of this worker
};

// The inner backend's model together with the outer optimizer.
class Worker final : public yoke::Wrapped {
 public:
  // The initial parameters are the first anchor. They are equal on all workers.
  Worker(std::unique_ptr<yoke::Wrapped> inner, const Setup& setup, const Options& options)
      : inner_(std::move(inner)), setup_(setup), outer_(options, setup.workers) {
    outer_.start(read());
  }

  YokeWrapResult wrap_result() const override {
    YokeWrapResult result = inner_->wrap_result();
    const auto own = static_cast<int64_t>(sizeof(double) * num_values_);
    if (result.optimizer_bytes >= 0) result.optimizer_bytes += 2 * own;
    result.axis_bytes[YOKE_DP_REPLICATE] = own / setup_.local_steps;  // mean over the steps
    return result;
  }

  YokeStepResult step(const YokeStepArgs& args) override {
    // The inner backend receives the batch of its own world, so its mean loss and gradient are over
    // this worker's targets.
    YokeBatch batch = yoke::copied(*args.batch);
    batch.token_weight = own_weight(batch);
    YokeStepArgs inner = yoke::copied(args);
    inner.batch = &batch;
    const YokeStepResult own = inner_->step(inner);
    if (yoke::is_training(args) && args.step % setup_.local_steps == 0) synchronise();
    const auto [loss, weight, squares] =
        setup_.workers.sum<3>({own.loss_sum, own.loss_weight, own.grad_norm * own.grad_norm});
    return yoke::step_result(args, loss, weight, std::sqrt(squares / setup_.workers.size()));
  }

  void checkpoint(const YokeCheckpointArgs& args) override;

 private:
  struct Walk;

  // Returns the number of targets in this worker's batch. If the host has not given the number for
  // each micro-batch, assumes an equal share of the whole batch.
  double own_weight(const YokeBatch& batch) const {
    double targets = 0;
    for (uint64_t m = 0; m < batch.num_micros; ++m) targets += batch.micros[m]->token_weight;
    targets = setup_.shards.sum<1>({targets})[0];
    return targets > 0 ? targets : batch.token_weight / setup_.workers.size();
  }

  // Synchronises the workers. Collective over the workers.
  void synchronise() {
    std::vector<double> values = read();
    outer_.step(values);
    write(values);
  }

  // Returns the inner parameters as fp64, piece by piece. A LOAD must provide every piece, so the
  // bytes of the whole inner state are kept for write().
  std::vector<double> read() {
    std::vector<double> values;
    kept_.clear();
    walk(YOKE_CHECKPOINT_SAVE, [&](const YokePiece& piece, YokeError*) {
      const auto* bytes = yoke::data<const char>(*piece.view);
      kept_.emplace_back(bytes, bytes + piece.count * yoke::item_size(piece.dtype));
      for (int64_t k = 0; is_param(piece) && k < piece.count; ++k)
        values.push_back(yoke_get(bytes, piece.dtype, k));
      return YOKE_OK;
    });
    num_values_ = values.size();
    return values;
  }
  // Loads the given parameters into the inner backend, and all other pieces unchanged.
  void write(const std::vector<double>& values) {
    size_t next = 0, at = 0;
    walk(YOKE_CHECKPOINT_LOAD, [&](const YokePiece& piece, YokeError*) {
      auto* bytes = yoke::data<char>(*piece.view);
      std::memcpy(bytes, kept_[next].data(), kept_[next].size());
      for (int64_t k = 0; is_param(piece) && k < piece.count; ++k)
        yoke_set(bytes, piece.dtype, k, values[at++]);
      ++next;
      return YOKE_OK;
    });
    kept_.clear();
  }

  static bool is_param(const YokePiece& piece) { return yoke::view(piece.kind) == "param"; }

  // Calls visit(piece, err) for each piece of the inner state. If visit throws, the exception is
  // converted to a code, which the inner backend returns.
  template <class F>
  void walk(int32_t op, F&& visit) {
    YokeCheckpointArgs args{};
    args.header = YOKE_HEADER(YokeCheckpointArgs, YOKE_ID_CHECKPOINT_ARGS);
    args.op = op;
    args.visit_ctx = &visit;
    args.visit = [](void* ctx, const YokePiece* piece, YokeError* err) {
      int32_t code = YOKE_OK;
      const int32_t thrown = yoke::guard(err, [&] { code = (*static_cast<F*>(ctx))(*piece, err); });
      return thrown != YOKE_OK ? thrown : code;
    };
    inner_->checkpoint(args);
  }

  const std::unique_ptr<yoke::Wrapped> inner_;
  const Setup& setup_;
  Outer outer_;
  std::vector<std::vector<char>> kept_;  // bytes of each inner piece, between read and write
  size_t num_values_ = 0;
};

// ---- Checkpoints ----
//
// The state of worker 0 is saved under the standard kinds, so that any other backend can resume
// from it. The state of worker n > 0 has the kinds w<n>_param, w<n>_exp_avg and so on. The outer
// optimizer has outer_anchor and outer_velocity. A checkpoint of another backend has only the
// standard kinds. Every worker then starts from them, with the loaded parameters as the anchor and
// zero velocity.

// Returns the kind under which a worker other than the first saves state of the given kind.
std::string worker_kind(int64_t worker, const std::string& kind) {
  return "w" + std::to_string(worker) + "_" + kind;
}

// Passes inner pieces on to the host's visitor, under the kinds above.
struct Worker::Walk {
  const YokeCheckpointArgs& args;
  const int64_t worker, workers;

  int32_t visit(YokePiece piece, const std::string& kind, YokeError* err) const {
    piece.kind = yoke::view(kind);
    return args.visit(args.visit_ctx, &piece, err);
  }
  int32_t inner(const YokePiece& piece, YokeError* err) const {
    const std::string kind(yoke::view(piece.kind));
    if (worker == 0) return visit(piece, kind, err);
    const int32_t code = visit(piece, worker_kind(worker, kind), err);
    const bool unknown = args.op == YOKE_CHECKPOINT_LOAD && code == YOKE_NOT_FOUND;
    return unknown ? visit(piece, kind, err) : code;
  }
  // Reports `values`, the part of an array of the outer optimizer that belongs to an inner piece.
  // It covers the same elements as that piece. If the checkpoint does not have the kind, element k
  // is set to otherwise(inner tensor, k).
  template <class F>
  int32_t outer(YokePiece piece, const char* kind, double* values, F&& otherwise, YokeError* err) {
    const yoke::FlatView view(values, piece.count, YOKE_F64);
    const YokeTensor* const inner = piece.view;
    piece.dtype = YOKE_F64;
    piece.replica = piece.replica * workers + worker;
    piece.view = args.op == YOKE_CHECKPOINT_DESCRIBE ? nullptr : view.get();
    const int32_t code = visit(piece, kind, err);
    if (args.op != YOKE_CHECKPOINT_LOAD || code != YOKE_NOT_FOUND) return code;
    for (int64_t k = 0; k < piece.count; ++k) values[k] = otherwise(*inner, k);
    return YOKE_OK;
  }
};

void Worker::checkpoint(const YokeCheckpointArgs& args) {
  Walk show{args, setup_.workers.rank(), setup_.workers.size()};
  size_t at = 0;
  walk(args.op, [&](const YokePiece& piece, YokeError* err) -> int32_t {
    YOKE_TRY(show.inner(piece, err));
    if (!is_param(piece)) return YOKE_OK;
    const auto loaded = [](const YokeTensor& t, int64_t k) {
      return yoke_get(yoke::data<char>(t), YOKE_DTYPE_OF(t.dtype), k);
    };
    const auto zero = [](const YokeTensor&, int64_t) { return 0.0; };
    YOKE_TRY(show.outer(piece, "outer_anchor", outer_.anchor().data() + at, loaded, err));
    YOKE_TRY(show.outer(piece, "outer_velocity", outer_.velocity().data() + at, zero, err));
    at += static_cast<size_t>(piece.count);
    return YOKE_OK;
  });
}

// ---- Context and backend ----

// One rank: the inner backend's context and the communicators between the workers.
class DilocoContext final : public yoke::Context {
 public:
  explicit DilocoContext(const YokeInitArgs& args)
      : options_(args.options, args.num_options),
        plan_(inner_plan(*args.plan)),
        inner_(yoke::InnerBackend(*args.host, std::string(options_.string("inner")), kInside)
                   .init(plan_)),
        setup_{*args.host,
               options_.integer("local_steps"),
               yoke::Comm(*args.host, kWorkers, "diloco"),
               yoke::Comm(*args.host, YOKE_AXIS_BIT(YOKE_DP_SHARD), "diloco weights")} {}

  std::unique_ptr<yoke::Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<Worker>(inner_->wrap_model(model), setup_, options_);
  }

 private:
  const Options options_;
  const YokePlan plan_;
  const std::unique_ptr<yoke::Context> inner_;
  const Setup setup_;
};

class Diloco final : public yoke::Backend {
 public:
  const YokeDescription& describe() const override {
    static const YokeOptionInfo rows[] = {
        yoke::option_info(YOKE_OPTION_STRING, "inner", "replicas", "", "backend of every worker"),
        yoke::changes_numbers(yoke::option_info(YOKE_OPTION_INT,
                                                "local_steps",
                                                "50",
                                                "",
                                                "steps between two synchronisations of the workers",
                                                {1, 1e9})),
        yoke::changes_numbers(yoke::option_info(
            YOKE_OPTION_DOUBLE, "lr", "0.7", "", "learning rate of the outer SGD", {0, 1e9})),
        yoke::changes_numbers(
            yoke::option_info(YOKE_OPTION_DOUBLE,
                              "momentum",
                              "0.9",
                              "",
                              "Nesterov momentum of the outer SGD; 0 with lr 1 = plain averaging",
                              {0, 1})),
    };
    static const auto options = yoke::pointers_to(rows);
    static const std::vector<YokeStateKind> kinds = {
        yoke::state_kind("outer_anchor", "parameters after the last synchronisation"),
        yoke::state_kind("outer_velocity", "momentum of the outer SGD"),
        yoke::state_kind("w#_param", "parameters of another worker than the first"),
        yoke::state_kind("w#_exp_avg", "first moment of such a worker"),
        yoke::state_kind("w#_exp_avg_sq", "second moment of such a worker"),
        yoke::state_kind("w#_momentum", "momentum of such a worker"),
        yoke::state_kind("w#_step", "step of such a worker")};
    static const auto kind_pointers = yoke::pointers_to(kinds);
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
    static const YokeDescription description = [] {
      YokeDescription d =
          yoke::description("diloco",
                            "1.0.0",
                            "DiLoCo: local training on any backend, rare communication",
                            dtypes,
                            (1u << YOKE_NUM_AXES) - 1,
                            0xf);
      yoke::set_options(d, options);
      yoke::set_state_kinds(d, kind_pointers);
      // Everything is declared here. What is possible depends on the inner backend, so plan
      // decides.
      d.traits = YOKE_LOCAL_UPDATES | YOKE_BY_OPTIONS;
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
    const std::string name(Options(args.options, args.num_options).string("inner"));
    if (name == "diloco")
      return report.refuse("diloco.inner", name, "another backend", "one level is enough");
    if (!resolve_workers(plan, report)) return;
    // The inner backend plans one worker's share. Afterwards the values of the whole run are
    // restored.
    const YokePlan asked = plan;
    plan = inner_plan(asked);
    const int before = report.count();
    const auto pass_on = [&](const YokeRefusal& r) {
      args.refuse(args.refuse_ctx, &r);
      if (r.note == 0) report.add(1);
    };
    YokeError err = yoke::make_error();
    const int32_t code = yoke::InnerBackend(args, name).plan(args, plan, pass_on, &err);
    if (report.count() == before) yoke::check(code, err);
    plan.world_size = asked.world_size;
    plan.global_batch = asked.global_batch;
    plan.degree[YOKE_DP_REPLICATE] = asked.degree[YOKE_DP_REPLICATE];
  }

  std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
    return std::make_unique<DilocoContext>(args);
  }

 private:
  // Sets the number of workers: dp_degree or, if it is unset, the number of ranks divided by the
  // other degrees. Returns whether ranks and batch can be divided evenly among the workers.
  static bool resolve_workers(YokePlan& plan, yoke::PlanReport& report) {
    int32_t& workers = plan.degree[YOKE_DP_REPLICATE];
    if (workers == 0)
      workers = static_cast<int32_t>(
          std::max<int64_t>(1, plan.world_size / yoke_degree_product(plan.degree)));
    const auto require_divides = [&](const char* key, int32_t total, const char* what) {
      if (total % workers == 0) return true;
      report.refuse(key,
                    std::to_string(workers),
                    "a divisor of " + std::to_string(total),
                    std::string("every worker gets an equal share of the ") + what);
      return false;
    };
    const bool ranks = require_divides("dp_degree", plan.world_size, "ranks");
    return require_divides("dp_degree", plan.global_batch, "global batch") && ranks;
  }
};

}  // namespace

YOKE_EXPORT_BACKEND(Diloco)
