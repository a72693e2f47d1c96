// megatron_compat: Megatron-LM's command lines and semantics as a backend.
//
// Start reading here; README.md lists the other files in reading order.
#include <memory>

#include "plugins/megatron_compat/config/config.hpp"
#include "plugins/megatron_compat/engine.hpp"
#include "plugins/megatron_compat/plan.hpp"
#include "yoke/backend.hpp"
#include "yoke/torch.hpp"

namespace yoke::megatron_compat {
namespace {

class MegatronCompat : public Backend {
 public:
  const YokeDescription& describe() const override {
    static const int32_t dtypes[] = {YOKE_F32, YOKE_F64, YOKE_BF16};
    static const YokeDescription description = [] {
      YokeDescription d = yoke::description(
          "megatron_compat",
          "0.1.0",
          "Megatron-LM's arguments: buckets, distributed optimizer, overlap, recomputation",
          dtypes,
          YOKE_AXIS_BIT(YOKE_DP_REPLICATE) | YOKE_AXIS_BIT(YOKE_DP_SHARD),
          1u << 0 | 1u << 1);
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
    return context_of<Engine, Environment>(args);
  }
};

}  // namespace
}  // namespace yoke::megatron_compat

YOKE_EXPORT_BACKEND(yoke::megatron_compat::MegatronCompat)
