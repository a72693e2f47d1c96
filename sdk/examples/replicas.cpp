// replicas: data parallelism in C++. Every rank holds the whole model and runs its own
// micro-batches. The gradients are summed over all ranks once per step, by the host's collectives.
#include "yoke/comm.hpp"
#include "yoke/flat.hpp"

namespace {

// The model on one rank.
class Replica final : public yoke::Wrapped {
 public:
  Replica(const YokeModel& model, const YokeInitArgs& args)
      : host_(*args.host),
        ranks_(host_, YOKE_AXIS_BIT(YOKE_DP_REPLICATE), "reduce"),
        state_(model, args) {}

  YokeWrapResult wrap_result() const override {
    return state_.bytes(ranks_.size() > 1 ? YOKE_DP_REPLICATE : -1);
  }
  YokeStepResult step(const YokeStepArgs& args) override {
    auto [loss, weight] = ranks_.sum(state_.run(args, host_));
    if (!yoke::is_training(args)) return yoke::step_result(args, loss, weight, yoke::kUnknown);
    // Without this sum every rank trains on its own data only, and the copies of the model diverge.
    ranks_.all_reduce(state_.grad()).wait();
    const double norm = state_.norm();
    state_.update(args, norm);
    return yoke::step_result(args, loss, weight, norm);
  }
  void checkpoint(const YokeCheckpointArgs& args) override { state_.visit(args, host_.rank); }

 private:
  const YokeHost& host_;
  const yoke::Comm ranks_;
  yoke::Flat state_;
};

class DataParallel final : public yoke::Backend {
 public:
  const YokeDescription& describe() const override {
    static constexpr int32_t dtypes[] = {YOKE_F32, YOKE_F64};
    static const YokeDescription description =
        yoke::description("replicas",
                          "1.0.0",
                          "data parallelism in C++: one sum per step",
                          dtypes,
                          YOKE_AXIS_BIT(YOKE_DP_REPLICATE),
                          1u << 0);
    return description;
  }
  void plan(const YokePlanArgs& args, YokePlan& plan, yoke::PlanReport& report) const override {
    yoke::resolve_flat(args, plan, report, YOKE_DP_REPLICATE, "remove it: all ranks replicate");
  }
  std::unique_ptr<yoke::Context> init(const YokeInitArgs& args) const override {
    return yoke::context_of<Replica>(args);
  }
};

}  // namespace

YOKE_EXPORT_BACKEND(DataParallel)
