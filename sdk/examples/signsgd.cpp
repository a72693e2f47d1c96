// signsgd: sign-SGD with majority vote and error feedback. Ranks exchange one bit for each element
// of the gradient.
//
// Each rank keeps an error e, and in every step
//
//   u = e + g                      g: gradient of this rank's share of the batch
//   s = sign(u), a = mean of |u|   one number a for each tensor
//   e = u - a * s                  what this rank has not said yet
//   p = p - lr * a' * sign(sum of s over the ranks)
//
// where a' is the mean of a over the ranks. The error is what a rank wanted to apply, but could not
// say with one bit; it is said later. The rule is the backend's own (YOKE_OWN_UPDATE), and depends
// on the ranks that vote (YOKE_RANKS_CHANGE_UPDATE). The error belongs to a rank: a run on another
// number of ranks starts it from zero (YOKE_STATE_PER_RANK).
//
// After "signSGD with Majority Vote" (Bernstein et al., 2019) and "Error Feedback Fixes SignSGD"
// (Karimireddy et al., 2019).
#include <cmath>
#include <vector>

#include "yoke/comm.hpp"
#include "yoke/flat.hpp"
#include "yoke/optimizer_name.hpp"

namespace {

constexpr char kErrorKind[] = "feedback";

// The model on one rank. The errors are in an array like that of the gradients.
class Voter final : public yoke::Wrapped {
 public:
  Voter(const YokeModel& model, const YokeInitArgs& args)
      : host_(*args.host), ranks_(host_, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "vote") {
    yoke::call([&](YokeError* err) { return yoke_flat_make(&flat_, &model, args.plan, err); });
    activations_ = yoke_walk_bytes(model.summary, args.plan->micro_batch);
    error_.resize(static_cast<size_t>(flat_.trainable));
    bytes_ = (flat_.trainable + 7) / 8;
    ballots_.resize(static_cast<size_t>(bytes_ * ranks_.size()));
    for (uint64_t i = 0; i < model.summary->num_params; ++i)
      if (model.summary->params[i]->trainable) trainable_.push_back(static_cast<int64_t>(i));
    lengths_.resize(trainable_.size());
  }
  ~Voter() override { yoke_flat_free(&flat_); }

  YokeWrapResult wrap_result() const override {
    YokeWrapResult result{};
    yoke_flat_bytes(&flat_, &result);
    result.activation_bytes = activations_;
    result.optimizer_bytes = flat_.trainable * static_cast<int64_t>(sizeof(double));
    if (ranks_.size() > 1)
      result.axis_bytes[YOKE_DP_REPLICATE] =
          bytes_ * ranks_.size() + static_cast<int64_t>(lengths_.size() * sizeof(double));
    return result;
  }

  YokeStepResult step(const YokeStepArgs& args) override {
    std::array<double, 2> sums{};
    yoke::call(
        [&](YokeError* err) { return yoke_flat_run(&flat_, &args, &host_, sums.data(), err); });
    const double squares = yoke::is_training(args) ? std::pow(yoke_flat_norm(&flat_), 2) : 0;
    const auto [loss, weight, all_squares] = ranks_.sum<3>({sums[0], sums[1], squares});
    if (!yoke::is_training(args)) return yoke::step_result(args, loss, weight, yoke::kUnknown);
    if (!std::isfinite(all_squares)) return yoke::step_result(args, loss, weight, INFINITY);
    vote();
    update(args.lr);
    flat_.step = args.step;
    // The norm of the whole gradient would need an exchange of the whole gradient.
    return yoke::step_result(args, loss, weight, yoke::kUnknown);
  }

  void checkpoint(const YokeCheckpointArgs& args) override {
    yoke::call([&](YokeError* err) { return visit(args, err); });
  }

 private:
  const YokeParameter& param(int64_t i) const { return *flat_.model->summary->params[i]; }

  // Casts this rank's vote for every element, and collects those of all ranks.
  void vote() {
    uint8_t* const mine = ballots_.data() + bytes_ * ranks_.rank();
    std::fill(mine, mine + bytes_, uint8_t{0});
    for (size_t t = 0; t < trainable_.size(); ++t) {
      const int64_t begin = flat_.begin[trainable_[t]], n = yoke_count(&param(trainable_[t]));
      double sum = 0;
      for (int64_t k = begin; k < begin + n; ++k) {
        double& e = error_[static_cast<size_t>(k)];
        e += yoke_get(flat_.grad, flat_.dtype, k);
        sum += std::fabs(e);
      }
      const double length = n > 0 ? sum / static_cast<double>(n) : 0;
      for (int64_t k = begin; k < begin + n; ++k) {
        double& e = error_[static_cast<size_t>(k)];
        const bool up = e >= 0;
        if (up) mine[k / 8] = static_cast<uint8_t>(mine[k / 8] | 1u << k % 8);
        e -= up ? length : -length;
      }
      lengths_[t] = length;
    }
    ranks_
        .all_gather({ballots_.data(), bytes_ * ranks_.size(), YOKE_U8},
                    yoke::ConstSpan(yoke::Span{mine, bytes_, YOKE_U8}))
        .wait();
    ranks_.all_reduce({lengths_.data(), static_cast<int64_t>(lengths_.size()), YOKE_F64}).wait();
  }

  // Moves every parameter in the direction that most ranks have voted for.
  void update(double lr) {
    for (size_t t = 0; t < trainable_.size(); ++t) {
      const YokeParameter& p = param(trainable_[t]);
      const double length = lr * lengths_[t] / ranks_.size();
      const double keep = p.decay ? 1 - lr * flat_.optimizer->weight_decay : 1;
      const int64_t begin = flat_.begin[trainable_[t]];
      for (int64_t k = begin; k < begin + yoke_count(&p); ++k) {
        int votes = 0;
        for (int r = 0; r < ranks_.size(); ++r)
          votes += (ballots_[static_cast<size_t>(bytes_ * r + k / 8)] >> k % 8 & 1) != 0 ? 1 : -1;
        const double move = votes > 0 ? length : votes < 0 ? -length : 0;
        yoke_set(flat_.value, flat_.dtype, k, keep * yoke_get(flat_.value, flat_.dtype, k) - move);
      }
    }
  }

  int32_t visit(const YokeCheckpointArgs& args, YokeError* err) {
    // yoke_flat_visit shows parameters, the step, and no moments, since flat_ is that of plain SGD.
    YOKE_TRY(yoke_flat_visit(&flat_, &args, host_.rank, err));
    for (const int64_t i : trainable_) YOKE_TRY(show_error(args, i, err));
    return YOKE_OK;
  }

  // Shows the error of one parameter: row `rank` of a tensor with a row for each rank.
  int32_t show_error(const YokeCheckpointArgs& args, int64_t i, YokeError* err) {
    const YokeParameter& p = param(i);
    std::vector<int64_t> shape = {host_.world_size};
    shape.insert(shape.end(), p.shape, p.shape + p.ndim);
    double* const mine = error_.data() + flat_.begin[i];
    const yoke::FlatView view(mine, yoke_count(&p), YOKE_F64);
    YokePiece piece{};
    piece.header = YOKE_HEADER(YokePiece, YOKE_ID_PIECE);
    piece.name = p.name;
    piece.kind = yoke::view(kErrorKind);
    piece.shape = shape.data();
    piece.ndim = static_cast<int32_t>(shape.size());
    piece.dtype = YOKE_F64;
    piece.count = yoke_count(&p);
    piece.run = piece.count;
    piece.begin = piece.count * host_.rank;
    piece.view = args.op == YOKE_CHECKPOINT_DESCRIBE ? nullptr : view.get();
    const int32_t code = args.visit(args.visit_ctx, &piece, err);
    if (args.op != YOKE_CHECKPOINT_LOAD || code != YOKE_NOT_FOUND) return code;
    std::fill(mine, mine + piece.count, 0.0);
    return YOKE_OK;
  }

  const YokeHost& host_;
  const yoke::Comm ranks_;
  YokeFlat flat_{};
  std::vector<int64_t> trainable_;  // indices of the trainable parameters
  std::vector<double> error_;       // e of this rank
  std::vector<double> lengths_;     // a of each trainable parameter
  int64_t bytes_ = 0;               // bytes of the ballot of a rank, one bit for each element
  std::vector<uint8_t> ballots_;    // ballots of all ranks
  int64_t activations_ = 0;         // bytes that the blocks keep for their backward
};

class SignSgd final : public yoke::Backend {
 public:
  const YokeDescription& describe() const override {
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64};
    static const std::vector<YokeStateKind> kinds = {yoke::state_kind(
        kErrorKind, "what each rank has not said yet with its one bit", YOKE_STATE_PER_RANK)};
    static const auto kind_pointers = yoke::pointers_to(kinds);
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description("signsgd",
                                            "1.0.0",
                                            "sign-SGD: ranks vote with one bit an element",
                                            dtypes,
                                            YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
                                            1u << 0);
      d.traits = YOKE_OWN_UPDATE | YOKE_RANKS_CHANGE_UPDATE;
      yoke::set_state_kinds(d, kind_pointers);
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
    yoke::resolve_flat(args, plan, report, YOKE_DP_REPLICATE, "remove it: every rank votes");
    const YokeOptimizer& o = *plan.optimizer;
    if (o.kind != YOKE_SGD)
      report.refuse("train.optimizer",
                    yoke::optimizer_name(o.kind),
                    "sgd",
                    "set it to \"sgd\": the rule is its own");
    if (o.kind == YOKE_SGD && o.momentum != 0)
      report.refuse("train.momentum", yoke::concat(o.momentum), "0", "remove it: errors are kept");
    if (o.clip != 0)
      report.note("train.clip", yoke::concat(o.clip), "it has no effect: votes have no length");
  }

  std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
    return yoke::context_of<Voter>(args);
  }
};

}  // namespace

YOKE_EXPORT_BACKEND(SignSgd)
