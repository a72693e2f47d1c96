// The backend ptd is PyTorch's distributed strategies (DDP, FSDP2, HSDP, TP, CP, PP) in C++. Start
// reading here; README.md lists the other files in reading order.
#include <memory>

#include "plugins/ptd/comms.hpp"
#include "plugins/ptd/options.hpp"
#include "plugins/ptd/plan.hpp"
#include "plugins/ptd/torchtitan/run_lines.hpp"
#include "plugins/ptd/wrapped_model.hpp"
#include "yoke/torch.hpp"

namespace yoke::ptd {
namespace {

// The context of one rank. The contract guarantees that the plan, the options and the host outlive
// it.
class PtdContext final : public Context {
 public:
  explicit PtdContext(const YokeInitArgs& args)
      : plan_(*args.plan),
        options_(torchtitan::options_of(Options(args.options, args.num_options), plan_)),
        host_(*args.host),
        comms_(Comms::make(plan_, options_.shard_over_cp, stages_return(options_), host_)) {}

  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<WrappedModel>(model, plan_, options_, comms_, host_);
  }

 private:
  const YokePlan& plan_;
  PtdOptions options_;
  const YokeHost& host_;
  Comms comms_;
};

class Ptd : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16, YOKE_F16};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description(
          "ptd",
          "0.1.0",
          "PyTorch's distributed strategies in C++: DDP, FSDP2, HSDP, TP, CP, PP",
          dtypes,
          YOKE_AXIS_BIT(YOKE_PP) | YOKE_AXIS_BIT(YOKE_DP_REPLICATE) | YOKE_AXIS_BIT(YOKE_DP_SHARD) |
              YOKE_AXIS_BIT(YOKE_CP) | YOKE_AXIS_BIT(YOKE_TP),
          1u << 0 | 1u << 2 | 1u << 3);  // DDP; reshard_after_forward = false, = true
      d.vendor = view("Yoke");
      d.torch_tag = view(kTorchTag);
      d.devices |= 1u << YOKE_DEVICE_CUDA;
      set_options(d, option_infos());
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    complete_plan(args, plan, report);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    return std::make_unique<PtdContext>(args);
  }
};

}  // namespace
}  // namespace yoke::ptd

YOKE_EXPORT_BACKEND(yoke::ptd::Ptd)
