// accelerate_compat: Accelerate's config files, environment variables and semantics as a backend.
//
// DDP is implemented here, on LibTorch's own reducer. Everything else is delegated to the backend
// ptd, just as Accelerate delegates it to PyTorch. Start reading here; README.md lists the other
// files in reading order.
#include <memory>

#include "plugins/accelerate_compat/config/options.hpp"
#include "plugins/accelerate_compat/ddp/replica.hpp"
#include "plugins/accelerate_compat/plan.hpp"
#include "yoke/torch.hpp"

namespace yoke::accelerate_compat {
namespace {

class AccelerateCompat : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16, YOKE_F16};
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

  void plan(const YokePlanArgs& args, YokePlan& plan, PlanReport& report) const override {
    complete_plan(args, plan, report);
  }

  std::unique_ptr<Context> init(const YokeInitArgs& args) const override {
    const Chosen chosen = chosen_for(args);
    if (chosen.strategy.engine == Strategy::kDdp) return context_of<Replica, Environment>(args);
    return compat::init_with(delegation_of(chosen.strategy), args);
  }
};

}  // namespace
}  // namespace yoke::accelerate_compat

YOKE_EXPORT_BACKEND(yoke::accelerate_compat::AccelerateCompat)
