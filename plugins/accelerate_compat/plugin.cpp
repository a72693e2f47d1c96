// accelerate_compat: Accelerate's config files, variables and semantics, as a Yoke backend. DDP is
// done here, on LibTorch's own reducer; everything else by another backend, as Accelerate leaves it
// to PyTorch. Start reading here; README.md gives the order of the other files.
#include <memory>

#include "plugins/accelerate_compat/ddp/replica.hpp"
#include "plugins/accelerate_compat/inner.hpp"
#include "plugins/accelerate_compat/options.hpp"
#include "plugins/accelerate_compat/plan.hpp"
#include "yoke/torch.hpp"

namespace yoke::accelerate_compat {
namespace {

class DdpContext final : public Context {
 public:
  explicit DdpContext(const YokeInitArgs& args)
      : plan_(*args.plan),
        options_(Options(args.options, args.num_options)),
        host_(*args.host),
        groups_(ReplicaGroups::make(plan_, host_)) {}

  std::unique_ptr<Wrapped> wrap_model(const YokeModel& model) override {
    return std::make_unique<Replica>(model, plan_, options_, groups_, host_);
  }

 private:
  const YokePlan& plan_;
  DdpOptions options_;
  const YokeHost& host_;
  ReplicaGroups groups_;
};

class AccelerateCompat : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description(
          "accelerate_compat",
          "0.1.0",
          "Accelerate's YAML and variables: DDP by c10d::Reducer, FSDP and more by ptd",
          dtypes,
          YOKE_AXIS_BIT(YOKE_DP_REPLICATE) | YOKE_AXIS_BIT(YOKE_DP_SHARD) | YOKE_AXIS_BIT(YOKE_CP) |
              YOKE_AXIS_BIT(YOKE_TP),
          1u << 0 | 1u << 2 | 1u << 3);
      d.vendor = view("Yoke");
      d.torch_tag = view(kTorchTag);
      d.devices |= 1u << YOKE_DEVICE_CUDA;
      set_options(d, option_infos());
      return d;
    }();
    return description;
  }

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& refusals) const override {
    complete_plan(args, plan, refusals);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    const Chosen chosen = chosen_for(args);
    if (chosen.strategy.engine == Strategy::kDdp) return std::make_unique<DdpContext>(args);
    Inner inner(*args.host);
    std::vector<Finding> findings;  // the plan has told them
    inner.set(chosen.strategy.options, chosen.config, findings);
    return inner.init(*args.plan);
  }
};

}  // namespace
}  // namespace yoke::accelerate_compat

YOKE_EXPORT_BACKEND(yoke::accelerate_compat::AccelerateCompat)
