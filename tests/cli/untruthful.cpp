// untruthful: replicas with one lie, chosen by the option `lie`. With "" it tells the truth.
#include <csignal>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "yoke/comm.hpp"
#include "yoke/flat.hpp"
#include "yoke/options.hpp"

namespace {

using yoke::view;

constexpr char kParameter[] = "lm_head.weight";  // the one that is left out
// What LibTorch 2.11 reports if the memory of a GPU has a fault, without the stack trace.
constexpr char kFaultyMemory[] =
    "CUDA error: uncorrectable ECC error encountered\n"
    "Search for `cudaErrorECCUncorrectable' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n";
constexpr char kPerRank[] = "error";  // a kind of state that belongs to the ranks

// The visitor that the replica sees: it forwards to that of the host, except for the lie.
class Visitor {
 public:
  Visitor(const YokeCheckpointArgs& args, std::string lie) : args_(args), lie_(std::move(lie)) {
    own_ = args;
    own_.visit = [](void* self, const YokePiece* piece, YokeError* err) {
      return static_cast<Visitor*>(self)->visit(*piece, err);
    };
    own_.visit_ctx = this;
  }
  const YokeCheckpointArgs& args() const { return own_; }

 private:
  int32_t visit(const YokePiece& piece, YokeError* err) {
    const std::string kind(view(piece.kind));
    const bool chosen = view(piece.name) == kParameter;
    if (lie_ == "no_param" && chosen) return YOKE_OK;
    if (lie_ == "no_moment" && chosen && kind == "exp_avg_sq") return YOKE_OK;
    if (lie_ == "no_step" && kind == "step") return YOKE_OK;
    if (lie_ == "wrong_step" && kind == "step" && args_.op == YOKE_CHECKPOINT_SAVE) {
      YokePiece wrong = piece;
      YokeTensor tensor = *piece.view;
      int64_t step = *static_cast<const int64_t*>(tensor.data) + 1;
      tensor.data = &step;
      wrong.view = &tensor;
      return args_.visit(args_.visit_ctx, &wrong, err);
    }
    return args_.visit(args_.visit_ctx, &piece, err);
  }

  const YokeCheckpointArgs& args_;
  const std::string lie_;
  YokeCheckpointArgs own_;
};

class Replica final : public yoke::Wrapped {
 public:
  Replica(const YokeModel& model, const YokeInitArgs& args)
      : lie_(yoke::Options(args.options, args.num_options).string("lie")),
        host_(*args.host),
        ranks_(host_, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce"),
        events_(reinterpret_cast<const YokeEvents*>(
            host_.get_service(host_.ctx, "yoke.events/1", sizeof(YokeEvents)))),
        state_(model, args) {}

  YokeWrapResult wrap_result() const override { return state_.bytes(); }
  YokeStepResult step(const YokeStepArgs& args) override {
    const int64_t begin = events_->now(events_->ctx);
    const bool is_last = host_.rank == host_.world_size - 1;
    if (lie_ == "crash" && is_last) raise(SIGSEGV);
    if (lie_ == "device_error" && is_last && args.step == 3)
      throw std::runtime_error(kFaultyMemory);
    auto [loss, weight] = ranks_.sum(state_.run(args, host_));
    if (!yoke::is_training(args)) return yoke::step_result(args, loss, weight, yoke::kUnknown);
    ranks_.all_reduce(state_.grad()).wait();
    double norm = state_.norm();
    state_.update(args, norm);
    error_ += 1 + host_.rank;
    if (lie_ == "negative_norm") norm = -norm;
    if (lie_ == "own_loss") loss += host_.rank * 1e-3;
    report(begin);
    return yoke::step_result(args, loss, weight, norm);
  }
  void checkpoint(const YokeCheckpointArgs& args) override {
    Visitor visitor(args, lie_);
    state_.visit(visitor.args(), host_.rank);
    visit_error(args);
  }

 private:
  // Reports a span and metrics, and far too many of both with the lie "events".
  void report(int64_t begin) {
    const int64_t many = lie_ == "events" ? 100'001 : 1;
    for (int64_t i = 0; i < many; ++i) {
      events_->span(events_->ctx, YOKE_STRING("whole step"), begin, events_->now(events_->ctx), {});
      const std::string name = i == 0 ? "error" : "error" + std::to_string(i);
      events_->metric(events_->ctx, view(name), error_, nullptr);
    }
  }

  // The state of this rank is a row of a tensor that belongs to the first parameter.
  void visit_error(const YokeCheckpointArgs& args) {
    const int64_t shape[] = {host_.world_size, 1};
    const yoke::FlatView values(&error_, 1, YOKE_F64);
    YokePiece piece{};
    piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    piece.name = YOKE_STRING(kParameter);
    piece.kind = view(lie_ == "undeclared" ? "undeclared" : kPerRank);
    piece.shape = shape;
    piece.ndim = 2;
    piece.dtype = YOKE_F64;
    piece.begin = host_.rank;
    piece.count = 1;
    piece.run = 1;
    piece.view = args.op == YOKE_CHECKPOINT_DESCRIBE ? nullptr : values.get();
    YokeError err = yoke::make_error();
    const int32_t code = args.visit(args.visit_ctx, &piece, &err);
    if (code == YOKE_NOT_FOUND && args.op == YOKE_CHECKPOINT_LOAD) error_ = 0;
    if (code != YOKE_NOT_FOUND) yoke::check(code, err);
  }

  const std::string lie_;
  const YokeHost& host_;
  const yoke::Comm ranks_;
  const YokeEvents* const events_;
  yoke::Flat state_;
  double error_ = 0;  // grows by 1 + rank in every step
};

class Untruthful final : public yoke::Backend {
 public:
  const YokeDescription& describe() const override {
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64};
    static const YokeOptionInfo lie = [] {
      YokeOptionInfo info{};
      info.header = YOKE_HEADER(YokeOptionInfo, YOKE_ID_OPTION_INFO);
      info.key = YOKE_STRING("lie");
      info.doc = YOKE_STRING("what the backend lies about");
      info.type = YOKE_OPTION_STRING;
      return info;
    }();
    static const YokeOptionInfo* const options[] = {&lie};
    static const YokeStateKind error = [] {
      YokeStateKind kind{};
      kind.header = YOKE_HEADER(YokeStateKind, YOKE_ID_STATE_KIND);
      kind.kind = YOKE_STRING(kPerRank);
      kind.doc = YOKE_STRING("a number for each rank");
      kind.flags = YOKE_STATE_PER_RANK;
      return kind;
    }();
    static const YokeStateKind* const kinds[] = {&error};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description("untruthful",
                                            "1.0.0",
                                            "replicas with a lie",
                                            dtypes,
                                            YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
                                            1u << 0);
      d.options = options;
      d.num_options = 1;
      d.state_kinds = kinds;
      d.num_state_kinds = 1;
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
    yoke::resolve_flat(args, plan, report, YOKE_DP_REPLICATE, "remove it: all ranks replicate");
    const std::string_view lie = yoke::Options(args.options, args.num_options).string("lie");
    if (lie == "batch") plan.global_batch /= 2;
    if (lie == "degree") std::swap(plan.degree[YOKE_DP_REPLICATE], plan.degree[YOKE_DP_SHARD]);
    if (lie == "reduce") plan.reduce_dtype = 0x999;
    static YokeOptimizer other;
    other = *plan.optimizer;
    other.beta1 = 0.5;
    if (lie == "optimizer") plan.optimizer = &other;
  }
  std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
    return yoke::context_of<Replica>(args);
  }
};

}  // namespace

YOKE_EXPORT_BACKEND(Untruthful)
